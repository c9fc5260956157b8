-- ARGV: concurrency, rate, period, most, each 0 for none, and whether it is paused
redis.call('DEL', P .. 'c', P .. 'rate')
local names = {'concurrency', 'rate', 'period', 'most', 'paused'}
for i, name in ipairs(names) do
  if ARGV[i] ~= '0' then redis.call('HSET', P .. 'c', name, ARGV[i]) end
end
redis.call('SADD', 'pelton:jobs:queues', string.match(P, '{(.*)}'))
ring()
return 1
