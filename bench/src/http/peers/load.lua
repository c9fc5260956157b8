-- For wrk: the argument is the number of pipelined requests. Prints the figures in one line that is easy to parse.

init = function(arguments)
  local depth = tonumber(arguments[1])
  if depth > 1 then
    local all = string.rep(wrk.format("GET"), depth)
    request = function() return all end
  end
end

done = function(summary, latency)
  local errors = summary.errors
  print(string.format(
    "figures: requests=%d us=%d connect=%d read=%d write=%d status=%d timeout=%d p50=%d p99=%d",
    summary.requests, summary.duration,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
