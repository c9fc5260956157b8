-- ARGV: worker, then pairs of job and number of the run
local out = {}
for i = 2, #ARGV, 2 do
  local h = redis.call('HMGET', job(ARGV[i]), 'st', 'f', 'pr', 's', 'c')
  local held = 0
  if h[1] == 'running' and h[2] == ARGV[i + 1] then
    -- Claiming it again makes it look busy, by the clock of the server.
    local claimed = redis.call('XCLAIM', stream(h[3]), 'g', ARGV[1], 0, h[4], 'JUSTID')
    if #claimed == 1 then held = (h[5] == '1') and 2 or 1 end
  end
  out[#out + 1] = held
end
return out
