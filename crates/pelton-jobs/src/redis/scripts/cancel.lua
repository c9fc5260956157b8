local state = redis.call('HGET', job(ARGV[1]), 'st')
if not state or state == 'done' then return 2 end
if state == 'running' then
  redis.call('HSET', job(ARGV[1]), 'c', 1)
  return 1
end
remove(ARGV[1])
count('cancelled')
ring()
return 0
