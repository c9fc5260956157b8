-- Shared by all scripts. KEYS[1] is the prefix of all keys of a queue:
--   j:ID     the job, a hash            s:PRIORITY  ready and running jobs, a stream with the group "g"
--   d        delayed jobs, by time      k:KEY       unfinished jobs of a key, in order; only the first one is ready or running
--   b        blocked jobs               u:UNIQUE    the unfinished job with a unique key
--   dead     the dead-letter list       done        jobs with results, by the end of their time
--   rd, rj   repeated jobs              c           limits
--   n        totals                     f           the number of the last run
--   bell     wakes one idle worker      rate        the state of the rate limit
--   l        the shortest lease
-- Under memory pressure, a script may go on if its first write is one that frees memory. So the order of commands matters.
local P = KEYS[1]
local clock = redis.call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)
local whole = function(number) return string.format('%.0f', number) end
local job = function(id) return P .. 'j:' .. id end
local stream = function(priority) return P .. 's:' .. priority end

local function ring()
  if redis.call('EXISTS', P .. 'bell') == 0 then redis.call('LPUSH', P .. 'bell', 1) end
end

local function count(what, by) redis.call('HINCRBY', P .. 'n', what, by or 1) end

local function to_stream(id, priority)
  local entry = redis.call('XADD', stream(priority), '*', 'i', id, 't', now)
  redis.call('HSET', job(id), 'st', 'ready', 's', entry)
end

-- Makes a job ready, or puts it behind the others of its key.
local function make_ready(id)
  local h = redis.call('HMGET', job(id), 'k', 'pr')
  if not h[2] then return end
  if h[1] then
    local line = P .. 'k:' .. h[1]
    if redis.call('LINDEX', line, 0) ~= id and redis.call('RPUSH', line, id) > 1 then
      redis.call('ZADD', P .. 'b', now, id)
      redis.call('HSET', job(id), 'st', 'blocked')
      return
    end
  end
  to_stream(id, h[2])
end

-- Lets the next job of the key have its turn.
local function let_go(id, key, unique)
  if unique and redis.call('GET', P .. 'u:' .. unique) == id then redis.call('DEL', P .. 'u:' .. unique) end
  if not key then return end
  local line = P .. 'k:' .. key
  local first = redis.call('LINDEX', line, 0) == id
  redis.call('LREM', line, 1, id)
  while first do
    local next_id = redis.call('LINDEX', line, 0)
    if not next_id then return end
    redis.call('ZREM', P .. 'b', next_id)
    local priority = redis.call('HGET', job(next_id), 'pr')
    if priority then
      to_stream(next_id, priority)
      return
    end
    redis.call('LPOP', line)
  end
end

-- Takes a job out of the place where it is.
local function lift(id, state, priority, entry)
  if state == 'running' then redis.call('XACK', stream(priority), 'g', entry) end
  if state == 'running' or state == 'ready' then redis.call('XDEL', stream(priority), entry)
  elseif state == 'delayed' then redis.call('ZREM', P .. 'd', id)
  elseif state == 'blocked' then redis.call('ZREM', P .. 'b', id)
  elseif state == 'dead' then redis.call('ZREM', P .. 'dead', id)
  elseif state == 'done' then redis.call('ZREM', P .. 'done', id) end
end

local function remove(id)
  local h = redis.call('HMGET', job(id), 'st', 'pr', 's', 'k', 'u')
  if not h[1] then return end
  lift(id, h[1], h[2], h[3])
  redis.call('DEL', job(id))
  let_go(id, h[4], h[5])
end

local function bury(id, why, priority, entry, key, unique)
  lift(id, 'running', priority, entry)
  redis.call('ZADD', P .. 'dead', now, id)
  redis.call('HSET', job(id), 'st', 'dead', 'err', why)
  count('buried')
  let_go(id, key, unique)
end

-- a: payload, key, unique key, priority, kind of start, its time, attempts, first wait, longest wait, time to keep the result
local function enqueue(id, a)
  if redis.call('EXISTS', job(id)) == 1 then return {id, 1} end
  local unique = a[3] ~= '' and a[3]
  if unique then
    local other = redis.call('GET', P .. 'u:' .. unique)
    if other then return {other, 0} end
  end
  local most = redis.call('HGET', P .. 'c', 'most')
  if most then
    local unfinished = redis.call('ZCARD', P .. 'd') + redis.call('ZCARD', P .. 'b')
    for priority = 0, 3 do unfinished = unfinished + redis.call('XLEN', stream(priority)) end
    if unfinished >= tonumber(most) then return redis.error_reply('FULL ' .. most) end
  end
  if redis.call('HINCRBY', P .. 'n', 'enqueued', 1) == 1 then
    redis.call('SADD', 'pelton:jobs:queues', string.match(P, '{(.*)}'))
  end
  local h = {'p', a[1], 'pr', a[4], 'a', 0, 'm', a[7], 'w1', a[8], 'w2', a[9], 'e', now}
  if a[2] ~= '' then h[#h + 1] = 'k' h[#h + 1] = a[2] end
  if unique then
    h[#h + 1] = 'u' h[#h + 1] = unique
    redis.call('SET', P .. 'u:' .. unique, id)
  end
  if a[10] ~= '0' then h[#h + 1] = 'keep' h[#h + 1] = a[10] end
  local due = (a[5] == 'in' and now + a[6]) or (a[5] == 'at' and tonumber(a[6])) or 0
  if due > now then
    h[#h + 1] = 'st' h[#h + 1] = 'delayed' h[#h + 1] = 'due' h[#h + 1] = whole(due)
    redis.call('HSET', job(id), unpack(h))
    redis.call('ZADD', P .. 'd', whole(due), id)
    if redis.call('ZRANK', P .. 'd', id) == 0 then ring() end
  elseif a[2] ~= '' then
    redis.call('HSET', job(id), unpack(h))
    make_ready(id)
    ring()
  else
    h[#h + 1] = 'st' h[#h + 1] = 'ready' h[#h + 1] = 's'
    h[#h + 1] = redis.call('XADD', stream(a[4]), '*', 'i', id, 't', now)
    redis.call('HSET', job(id), unpack(h))
    ring()
  end
  return {id, 1}
end
