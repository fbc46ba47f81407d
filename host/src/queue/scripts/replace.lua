-- Replaces a dead letter by another form of it, at the end.
--
-- KEYS  1 dead letters
-- ARGV  1 its entry · 2… its new fields, name and value
-- Gives 1, or 0 when it is not there (any more): then nothing was written.
begin_call()
local dead = KEYS[1]
if #redis.call('XRANGE', dead, ARGV[1], ARGV[1]) == 0 then return 0 end
redis.call('XADD', dead, '*', unpack(ARGV, 2))
redis.call('XDEL', dead, ARGV[1])
return 1
