-- ARGV: state, how many to leave out, how many
local ids, skip, most = {}, tonumber(ARGV[2]), tonumber(ARGV[3])
local sets = {delayed = 'd', blocked = 'b', dead = 'dead', done = 'done'}
if sets[ARGV[1]] then
  ids = redis.call('ZRANGE', P .. sets[ARGV[1]], skip, skip + most - 1)
else
  for priority = 0, 3 do
    local last = '-'
    while #ids < most do
      local entries = redis.call('XRANGE', stream(priority), last, '+', 'COUNT', 1000)
      if #entries == 0 then break end
      for _, entry in ipairs(entries) do
        if redis.call('HGET', job(entry[2][2]), 'st') == ARGV[1] then
          if skip > 0 then skip = skip - 1 elseif #ids < most then ids[#ids + 1] = entry[2][2] end
        end
        last = '(' .. entry[1]
      end
    end
  end
end
local out = {}
for i, id in ipairs(ids) do out[i] = {id, redis.call('HGETALL', job(id))} end
return out
