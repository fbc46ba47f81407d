-- Renews the leases of running tasks and writes what they last said of their progress.
--
-- KEYS  1 stream · 2… status key of each task
-- ARGV  1 group · 2 consumer · then for each task: entry, percent (empty: nothing new), note
-- Gives for each task 1: lease renewed, 0: lost, 2: cancelled (both: stop the attempt), 3: the entry was deleted by somebody else.
--
-- XCLAIM drops an entry that is deleted from what is pending, so that nobody could settle it: it is not asked then, and the attempt may still end.
-- JUSTID keeps the delivery count, which counts crashes. Safe to run again.
local out = {}
for i = 2, #KEYS do
  local at = 3 + (i - 2) * 3
  if owned(KEYS[1], ARGV[1], ARGV[at], ARGV[2]) then
    local there = #redis.call('XRANGE', KEYS[1], ARGV[at], ARGV[at]) > 0
    if there then redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[at], 'JUSTID') end
    if ARGV[at + 1] ~= '' then set_status(KEYS[i], 'progress', ARGV[at + 1], 'note', ARGV[at + 2]) end
    out[i - 1] = there and 1 or 3
  else
    out[i - 1] = redis.pcall('HGET', KEYS[i], 'status') == 'CANCELLED' and 2 or 0
  end
end
return out
