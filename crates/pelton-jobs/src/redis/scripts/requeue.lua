-- ARGV: a job, or nothing for all, up to 1000 at a time
local ids = ARGV[1] ~= '' and {ARGV[1]} or redis.call('ZRANGE', P .. 'dead', 0, 999)
local found = 0
for _, id in ipairs(ids) do
  local h = redis.call('HMGET', job(id), 'st', 'u')
  if h[1] == 'dead' then
    redis.call('ZREM', P .. 'dead', id)
    redis.call('HSET', job(id), 'a', 0)
    if h[2] then redis.call('SET', P .. 'u:' .. h[2], id, 'NX') end
    make_ready(id)
    found = found + 1
  end
end
if found > 0 then ring() end
return found
