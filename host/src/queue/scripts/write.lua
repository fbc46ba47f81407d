-- Runs one command that writes a few bytes, although the memory of Redis may be full: what operators order,
-- and what hosts say of themselves. For commands that Redis refuses then.
--
-- KEYS  key
-- ARGV  command, parts... (its arguments behind the key)
-- Returns the reply to the command.
begin_call()
return redis.call(command, key, unpack(ARGV, parts_at))
