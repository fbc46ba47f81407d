-- Removes a consumer from the group, unless it has pending entries: XGROUP DELCONSUMER would discard them.
--
-- KEYS  stream, replies... (the last ones to this consumer's settlements)
-- ARGV  group, consumer
-- Returns 1 when the consumer was removed, 0 when it has pending entries or XPENDING fails (no group).
begin_call()
local pending = redis.pcall('XPENDING', stream, group, '-', '+', 1, consumer)
if pending.err or #pending > 0 then return 0 end
if #KEYS >= replies_key then redis.call('DEL', unpack(KEYS, replies_key)) end
redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
return 1
