return redis.call('HGETALL', job(ARGV[1]))
