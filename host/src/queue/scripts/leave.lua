-- Removes a consumer from the group, unless it has pending entries: XGROUP DELCONSUMER would discard them.
--
-- KEYS  1 stream · 2… the last replies to this consumer's settlements
-- ARGV  1 group · 2 consumer
-- Gives 1 when the consumer was removed, 0 when it has pending entries or XPENDING fails (no group).
begin_call()
local pending = redis.pcall('XPENDING', stream, group, '-', '+', 1, ARGV[2])
if pending.err or #pending > 0 then return 0 end
if #KEYS > 1 then redis.call('DEL', unpack(KEYS, 2)) end
redis.call('XGROUP', 'DELCONSUMER', stream, group, ARGV[2])
return 1
