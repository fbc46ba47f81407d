-- Renews the leases of running tasks and writes their latest progress.
--
-- KEYS  stream; each task: status, marker
-- ARGV  group, retention, window, consumer, lease; each task: entry, id, percent (empty: nothing new), note
-- Returns for each task one of
--   1: the lease is renewed
--   0: the lease is lost: stop the attempt
--   2: the task was cancelled: stop the attempt
--   3: somebody deleted the entry; the attempt may go on
--   4: somebody deleted the entry, and the task can no longer be settled: stop the attempt
--   the text of an error: its lease is not renewed
--
-- XCLAIM tells whether the entry exists without reading its fields, and removes a deleted entry from the
-- pending ones. No other consumer can own that task then. Its status says, for one lease at a time, that it
-- belongs to this consumer; settle.lua accepts that in place of the entry.
-- JUSTID keeps the delivery count, which counts crashes. Safe to run again.
begin_call()
take_told()
local lease_end, out = now + lease, {}

local function beat()
  if owned(entry, consumer) then
    -- In a queue with limits, the host settles a cancelled task when its handler has stopped.
    if turns.are_limited and mark_of(status, entry) == 'here' then return 2 end
    local claimed = redis.call('XCLAIM', stream, group, consumer, 0, entry, 'JUSTID')
    if percent ~= '' then set_status(status, 'progress', percent, 'note', note) end
    if #claimed > 0 then return 1 end
    redis.pcall('PERSIST', status)
    set_status(status, 'status', 'PROCESSING', 'entry', entry, 'consumer', consumer, 'deleted', lease_end)
    return 3
  end
  local state, known_entry, _, runner, kept_until = place_of(status)
  if state == 'CANCELLED' then return 2 end
  if state ~= 'PROCESSING' or known_entry ~= entry then return 0 end
  if runner == consumer and kept_until > 0 then
    redis.call('HSET', status, 'deleted', lease_end)
    return 3
  end
  -- If the whole stream or group was deleted, nothing can deliver its tasks again.
  if is_there(entry, kept_until) then return 0 end
  return note_lost(status, marker, id, entry, consumer) and 4 or 0
end

each_task(function(i) out[i] = try(beat) end)
return out
