-- Takes over what other consumers left without a heartbeat for a whole lease, and takes up again what this one left so itself.
--
-- KEYS  1 stream
-- ARGV  1 group · 2 consumer · 3 lease ms · 4 id to begin at · 5 how many at most
-- Gives the next cursor, the entries as { id, fields, deliveries }, and the ids of entries that were deleted while they were pending.
--
-- Its own entries come first, with JUSTID: a host that fell silent and woke up, or that never saw what it was given, is no crash, and
-- XAUTOCLAIM would count one. XAUTOCLAIM looks at ten times the limit, so the caller begins at the first abandoned one.
-- After a lost reply the entries are ours, unseen: recover.lua finds them, or this script after another lease.
local limit = tonumber(ARGV[5])
local entries, lost = {}, {}
local own = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', limit, ARGV[2])
for _, pending in ipairs(own) do
  local found = redis.call('XRANGE', KEYS[1], pending[1], pending[1])
  -- This takes a deleted entry out of the pending ones.
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, pending[1], 'JUSTID')
  if found[1] then entries[#entries + 1] = { pending[1], found[1][2], pending[4] } else lost[#lost + 1] = pending[1] end
end
if #own == limit then return { ARGV[4], entries, lost } end
local reply = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', limit - #own)
for _, entry in ipairs(reply[2]) do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)
  entries[#entries + 1] = { entry[1], entry[2], pending[1] and pending[1][4] or 1 }
end
for _, id in ipairs(reply[3] or {}) do lost[#lost + 1] = id end
return { reply[1], entries, lost }
