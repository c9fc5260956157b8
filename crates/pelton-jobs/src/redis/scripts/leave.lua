for priority = 0, 3 do
  local pending = redis.pcall('XPENDING', stream(priority), 'g', '-', '+', 1, ARGV[1])
  if not pending.err and #pending == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream(priority), 'g', ARGV[1])
  end
end
-- It may have answered the bell without doing what it was rung for.
ring()
return 0
