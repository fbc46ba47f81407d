-- Replaces a dead letter by another form of it, at the end.
--
-- KEYS  dead
-- ARGV  entry, fields... (the new ones)
-- Returns 1, or 0 when it is not there (any more): then nothing was written.
begin_call()
if not fields_in(dead, entry) then return 0 end
redis.call('XADD', dead, '*', unpack(ARGV, fields_at))
redis.call('XDEL', dead, entry)
return 1
