local h = redis.call('HMGET', job(ARGV[1]), 'st', 'f')
if h[1] ~= 'running' or h[2] ~= ARGV[2] then return 0 end
redis.call('HSET', job(ARGV[1]), 'g', ARGV[3])
return 1
