-- Renews the leases of running tasks and writes what they last said of their progress.
--
-- KEYS  1 stream · 2… status key of each task
-- ARGV  1 group · 2 consumer · 3 retention ms · then for each task: entry, percent (empty: nothing new), note
-- Gives for each task 1: lease renewed, 0: lost, 2: cancelled (both: stop the attempt), 3: its entry was deleted by somebody else, 4: so it
--   was, and nothing is pending for it any more (stop the attempt: it cannot be settled).
--
-- XCLAIM drops an entry that is deleted from what is pending, so that nobody could settle it: it is not asked then, and the attempt may still end.
-- JUSTID keeps the delivery count, which counts crashes. Safe to run again.

-- After the end of the whole stream or group, nobody will deliver its tasks again: such a task is FAILED, if its status still is that of
-- this attempt.
local function deleted(status, entry)
  if #redis.call('XRANGE', KEYS[1], entry, entry) > 0 then return false end
  local known = redis.pcall('HMGET', status, 'status', 'entry')
  if known.err or known[1] ~= 'PROCESSING' or known[2] ~= entry then return false end
  set_status(status, 'status', 'FAILED', 'error', 'lost: its entry was deleted from the stream', 'finished_at', now_ms())
  end_status(status, tonumber(ARGV[3]))
  return true
end

local out = {}
for i = 2, #KEYS do
  local at = 4 + (i - 2) * 3
  if owned(KEYS[1], ARGV[1], ARGV[at], ARGV[2]) then
    local there = #redis.call('XRANGE', KEYS[1], ARGV[at], ARGV[at]) > 0
    if there then redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[at], 'JUSTID') end
    if ARGV[at + 1] ~= '' then set_status(KEYS[i], 'progress', ARGV[at + 1], 'note', ARGV[at + 2]) end
    out[i - 1] = there and 1 or 3
  elseif deleted(KEYS[i], ARGV[at]) then
    out[i - 1] = 4
  else
    out[i - 1] = redis.pcall('HGET', KEYS[i], 'status') == 'CANCELLED' and 2 or 0
  end
end
return out
