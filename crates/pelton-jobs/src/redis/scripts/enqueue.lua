local a = {}
for i = 2, 11 do a[i - 1] = ARGV[i] end
return enqueue(ARGV[1], a)
