-- ARGV: name, milliseconds, or 0 to end it, then a job
local name, every = ARGV[1], tonumber(ARGV[2])
if every == 0 then
  redis.call('HDEL', P .. 'rj', name)
  return redis.call('ZREM', P .. 'rd', name)
end
local a = {}
for i = 3, 12 do a[i - 2] = ARGV[i] end
a[11] = ARGV[2]
local before = redis.call('HGET', P .. 'rj', name)
redis.call('HSET', P .. 'rj', name, cmsgpack.pack(a))
-- Workers declare it whenever they start. That must not move it.
if before and cmsgpack.unpack(before)[11] == a[11] then return 0 end
redis.call('ZADD', P .. 'rd', whole(now + every), name)
redis.call('SADD', 'pelton:jobs:queues', string.match(P, '{(.*)}'))
ring()
return 1
