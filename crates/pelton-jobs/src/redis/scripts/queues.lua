return redis.call('SMEMBERS', 'pelton:jobs:queues')
