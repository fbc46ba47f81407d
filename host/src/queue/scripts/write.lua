-- Runs one command that writes a few bytes, although the memory of Redis may be full: what operators order,
-- and what hosts say of themselves. For commands that Redis refuses then.
--
-- KEYS  1 its key
-- ARGV  1 the command · 2… its arguments behind the key
-- Gives the reply to the command.
begin_call()
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
