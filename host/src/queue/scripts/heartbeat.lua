-- Renews the leases of running tasks and writes what they last said of their progress.
--
-- KEYS  1 stream · 2… status key of each task
-- ARGV  1 group · 2 consumer · 3 retention ms · then for each task: entry, percent (empty: nothing new), note
-- Gives for each task 1: lease renewed, 0: lost, 2: cancelled, 3: somebody else deleted its entry (0, 2, 3: stop the attempt).
--
-- JUSTID keeps the delivery count, which counts crashes. Safe to run again.
-- XCLAIM forgets an entry that was deleted, and so does the end of the whole stream or group. Nobody will deliver such a task again: it is FAILED,
-- if its status still is that of this attempt.
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
  if owned(KEYS[1], ARGV[1], ARGV[at], ARGV[2]) and #redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[at], 'JUSTID') == 1 then
    if ARGV[at + 1] ~= '' then set_status(KEYS[i], 'progress', ARGV[at + 1], 'note', ARGV[at + 2]) end
    out[i - 1] = 1
  elseif deleted(KEYS[i], ARGV[at]) then
    out[i - 1] = 3
  else
    out[i - 1] = redis.pcall('HGET', KEYS[i], 'status') == 'CANCELLED' and 2 or 0
  end
end
return out
