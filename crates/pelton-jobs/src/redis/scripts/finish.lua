-- ARGV: job, number of the run, how it ended, its result or the reason, after how long to try again
local id = ARGV[1]
local h = redis.call('HMGET', job(id), 'st', 'f', 'pr', 's', 'k', 'u', 'keep', 'c', 'a')
if h[1] ~= 'running' or h[2] ~= ARGV[2] then
  redis.pcall('HINCRBY', P .. 'n', 'stale', 1)
  return 0
end
local how = ARGV[3]
if how == 'dead' and h[8] ~= '1' then
  bury(id, ARGV[4], h[3], h[4], h[5], h[6])
  count('failed')
  return 1
end
lift(id, 'running', h[3], h[4])
if how == 'done' then
  count('done')
  if h[7] then
    redis.call('HSET', job(id), 'st', 'done', 'res', ARGV[4])
    redis.call('PEXPIRE', job(id), h[7])
    redis.call('ZADD', P .. 'done', now + h[7], id)
  else
    redis.call('DEL', job(id))
  end
  let_go(id, h[5], h[6])
elseif h[8] == '1' then
  count('cancelled')
  redis.call('DEL', job(id))
  let_go(id, h[5], h[6])
elseif how == 'retry' then
  count('failed')
  local due = whole(now + ARGV[5])
  redis.call('HSET', job(id), 'st', 'delayed', 'err', ARGV[4], 'due', due)
  redis.call('ZADD', P .. 'd', due, id)
  if redis.call('ZRANK', P .. 'd', id) == 0 then ring() end
else
  redis.call('HSET', job(id), 'a', h[9] - 1)
  to_stream(id, h[3])
  ring()
end
return 1
