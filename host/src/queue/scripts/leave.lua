-- Removes this consumer from the group at shutdown, unless something is pending for it (which XGROUP DELCONSUMER would throw away).
--
-- KEYS  1 stream · 2… the last replies to this consumer's settlements
-- ARGV  1 group · 2 consumer
-- Gives 1 when it was removed.
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if pending.err or #pending > 0 then return 0 end
redis.call('DEL', unpack(KEYS, 2))
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
