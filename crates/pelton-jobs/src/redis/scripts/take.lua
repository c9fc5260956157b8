-- ARGV: worker, how many, lease, whether to look for lapsed leases, whether known jobs follow, known jobs
local worker, asked, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local room, out, again, fence = asked, {}, nil, nil

local function sooner(wait)
  if wait < 1 then wait = 1 end
  if not again or wait < again then again = math.ceil(wait) end
end

local due = redis.call('ZRANGEBYSCORE', P .. 'd', '-inf', now, 'LIMIT', 0, 100)
for _, id in ipairs(due) do
  redis.call('ZREM', P .. 'd', id)
  make_ready(id)
end
if #due == 100 then sooner(1) end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'rd', '-inf', now, 'LIMIT', 0, 100)) do
  local at = tonumber(redis.call('ZSCORE', P .. 'rd', name))
  local packed = redis.call('HGET', P .. 'rj', name)
  if packed then
    local a = cmsgpack.unpack(packed)
    -- Occurrences that were missed are not made up for.
    local every = tonumber(a[11])
    redis.call('ZADD', P .. 'rd', whole(at + (math.floor((now - at) / every) + 1) * every), name)
    enqueue(name .. '@' .. whole(at), a)
  else
    redis.call('ZREM', P .. 'rd', name)
  end
end
redis.call('ZREMRANGEBYSCORE', P .. 'done', '-inf', now)

local limits = redis.call('HMGET', P .. 'c', 'concurrency', 'rate', 'period', 'paused')
if limits[4] == '1' then room = 0 end
if limits[1] then
  local running = 0
  for priority = 0, 3 do
    local pending = redis.pcall('XPENDING', stream(priority), 'g')
    if not pending.err then running = running + pending[1] end
  end
  room = math.max(0, math.min(room, limits[1] - running))
end
local rate_time, each
if limits[2] and room > 0 then
  local period = limits[3] * 1000
  each = period / limits[2]
  rate_time = math.max(tonumber(redis.call('GET', P .. 'rate') or 0), micros)
  local allowed = math.floor((micros + period - rate_time) / each + 0.001)
  if allowed < room then
    room = math.max(allowed, 0)
    if room == 0 then sooner((rate_time + each - micros - period) / 1000) end
  end
end

-- Gives the job of an entry that is pending for this worker. Returns whether there is one.
local function give(priority, entry, id, attempt_counts)
  local h = redis.call('HMGET', job(id), 'p', 'k', 'a', 'm', 'w1', 'w2', 'g')
  if not h[1] then
    redis.call('XACK', stream(priority), 'g', entry)
    redis.call('XDEL', stream(priority), entry)
    return false
  end
  -- The clock keeps the number growing even if the server has lost its data.
  fence = math.max((fence or tonumber(redis.call('GET', P .. 'f') or 0)) + 1, micros)
  local attempt = tonumber(h[3]) + attempt_counts
  redis.call('HSET', job(id), 'st', 'running', 'a', attempt, 'f', whole(fence), 'w', worker, 'l', lease)
  out[#out + 1] = {id, h[1], h[2] or '', attempt, whole(fence), h[4], h[5], h[6], h[7] or ''}
  room = room - 1
  return true
end

-- Takes over what is pending although nobody works on it.
local function adopt(priority, entry, idle, mine, known)
  local fields = redis.call('XRANGE', stream(priority), entry, entry)
  local id = fields[1] and fields[1][2][2]
  if not id then
    redis.call('XACK', stream(priority), 'g', entry)
    return
  end
  local h = redis.call('HMGET', job(id), 'l', 'a', 'm', 'c', 'k', 'u')
  local unknown = mine and known and not known[id]
  if not unknown and idle < tonumber(h[1] or 0) then return end
  if not unknown then count('taken_over') end
  if h[4] == '1' then
    count('cancelled')
    remove(id)
  elseif not unknown and h[2] and tonumber(h[2]) >= tonumber(h[3]) then
    bury(id, 'its worker did not report back, and it was the last attempt', priority, entry, h[5], h[6])
  else
    redis.call('XCLAIM', stream(priority), 'g', worker, 0, entry, 'JUSTID')
    give(priority, entry, id, unknown and 0 or 1)
  end
end

if ARGV[4] == '1' then
  local known
  if ARGV[5] == '1' then
    known = {}
    for i = 6, #ARGV do known[ARGV[i]] = true end
  end
  -- Workers may have leases of different lengths. Look for entries that have been idle for the shortest one.
  local shortest = math.min(lease, tonumber(redis.call('GET', P .. 'l') or lease))
  if lease == shortest then redis.call('SET', P .. 'l', lease, 'PX', lease * 10) end
  for priority = 0, 3 do
    if known then
      local pending = redis.pcall('XPENDING', stream(priority), 'g', '-', '+', 1000, worker)
      if not pending.err then
        for _, entry in ipairs(pending) do
          if room > 0 then adopt(priority, entry[1], entry[3], true, known) end
        end
      end
    end
    local pending = redis.pcall('XPENDING', stream(priority), 'g', 'IDLE', shortest, '-', '+', 1000)
    if not pending.err then
      for _, entry in ipairs(pending) do
        if room > 0 then adopt(priority, entry[1], entry[3], false, known) end
      end
    end
    -- Workers that died long ago.
    local consumers = redis.pcall('XINFO', 'CONSUMERS', stream(priority), 'g')
    if not consumers.err then
      for _, consumer in ipairs(consumers) do
        local c = {}
        for i = 1, #consumer, 2 do c[consumer[i]] = consumer[i + 1] end
        if c.pending == 0 and c.idle > 100 * lease and c.name ~= worker then
          redis.call('XGROUP', 'DELCONSUMER', stream(priority), 'g', c.name)
        end
      end
    end
  end
end

for priority = 0, 3 do
  while room > 0 do
    local read = function()
      return redis.pcall('XREADGROUP', 'GROUP', 'g', worker, 'COUNT', room, 'STREAMS', stream(priority), '>')
    end
    local found = read()
    if type(found) == 'table' and found.err then
      if redis.call('EXISTS', stream(priority)) == 0 then break end
      if not string.find(found.err, 'NOGROUP') then return found end
      redis.call('XGROUP', 'CREATE', stream(priority), 'g', '0')
      found = read()
    end
    if not found then break end
    for _, entry in ipairs(found[1][2]) do give(priority, entry[1], entry[2][2], 1) end
  end
end

if fence then redis.call('SET', P .. 'f', whole(fence)) end
if each and #out > 0 then
  redis.call('SET', P .. 'rate', whole(rate_time + #out * each), 'PX', math.ceil(limits[3] * 2) + 1000)
end
-- There may be more, and others may have room.
if #out > 0 and #out == asked then ring() end
for _, set in ipairs({'d', 'rd'}) do
  local first = redis.call('ZRANGE', P .. set, 0, 0, 'WITHSCORES')
  if first[2] then sooner(first[2] - now) end
end
return {again or -1, out}
