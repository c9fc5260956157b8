-- ARGV: a state; up to 1000 at a time
local ids, sets = {}, {delayed = 'd', blocked = 'b', dead = 'dead', done = 'done'}
if ARGV[1] == 'ready' then
  for priority = 0, 3 do
    local last = '-'
    while #ids < 1000 do
      local entries = redis.call('XRANGE', stream(priority), last, '+', 'COUNT', 1000)
      if #entries == 0 then break end
      for _, entry in ipairs(entries) do
        if redis.call('HGET', job(entry[2][2]), 'st') == 'ready' and #ids < 1000 then ids[#ids + 1] = entry[2][2] end
        last = '(' .. entry[1]
      end
    end
  end
elseif sets[ARGV[1]] then
  ids = redis.call('ZRANGE', P .. sets[ARGV[1]], 0, 999)
end
for _, id in ipairs(ids) do
  remove(id)
  if sets[ARGV[1]] then redis.call('ZREM', P .. sets[ARGV[1]], id) end
end
if #ids > 0 then ring() end
return #ids
