local ready, running, oldest = 0, 0, 0
for priority = 0, 3 do
  local s = stream(priority)
  local length = redis.call('XLEN', s)
  local last, pending = '-', 0
  local groups = redis.pcall('XINFO', 'GROUPS', s)
  if not groups.err and groups[1] then
    local g = {}
    for i = 1, #groups[1], 2 do g[groups[1][i]] = groups[1][i + 1] end
    last, pending = '(' .. g['last-delivered-id'], g.pending
  end
  ready, running = ready + length - pending, running + pending
  local first = redis.call('XRANGE', s, last, '+', 'COUNT', 1)
  if first[1] then oldest = math.max(oldest, now - first[1][2][4]) end
end
local out = {ready, redis.call('ZCARD', P .. 'b'), redis.call('ZCARD', P .. 'd'), running, redis.call('ZCARD', P .. 'dead'), oldest}
local totals = {'enqueued', 'done', 'failed', 'buried', 'taken_over', 'stale', 'cancelled'}
for _, name in ipairs(totals) do out[#out + 1] = tonumber(redis.call('HGET', P .. 'n', name) or 0) end
for _, name in ipairs({'concurrency', 'rate', 'period', 'most', 'paused'}) do
  out[#out + 1] = tonumber(redis.call('HGET', P .. 'c', name) or 0)
end
return out
