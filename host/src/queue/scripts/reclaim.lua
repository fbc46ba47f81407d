-- Takes over what other consumers left without a heartbeat for a whole lease.
--
-- KEYS  1 stream
-- ARGV  1 group · 2 consumer · 3 lease ms · 4 cursor ('0-0' at first) · 5 how many at most
-- Gives the next cursor, the entries as { id, fields, deliveries }, and the ids of entries that were deleted while they were pending.
--
-- XAUTOCLAIM looks at ten times the limit and goes on at the cursor, so healthy tasks in front hide nothing.
-- After a lost reply the entries are ours, unseen: recover.lua finds them.
local reply = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local entries = {}
for _, entry in ipairs(reply[2]) do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)
  entries[#entries + 1] = { entry[1], entry[2], pending[1] and pending[1][4] or 1 }
end
return { reply[1], entries, reply[3] or {} }
