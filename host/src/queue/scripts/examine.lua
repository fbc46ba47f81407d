-- Checks whether tasks are where their statuses say. Mends those that are not, if asked to.
--
-- KEYS  stream, delayed, parked; each task: status, marker (the stream: also if it is not known yet)
-- ARGV  group, retention, window, mends; each task: id, before (the form of its status at the look before;
--       empty: this is the first look)
-- Returns for each task { verdict, the form of its status, the earliest time (ms) of the entry under which it
--   may wait, the marker that it names or false, the status or false, 1 when it was mended }.
--   Verdicts:
--   0 nothing is wrong
--   1 it has ended
--   2 the key has another type
--   3 it has ended and does not expire
--   4 it has ended and its entry still exists
--   5 it is in no place any more
--   6 it waits under an entry that its status does not name
--
-- If a status changed between two looks, nothing is wrong: its task moves. After verdict 6 the caller
-- searches the stream and the delayed tasks between the looks. If the task is not there and its status did
-- not change, it is nowhere: verdict 5.
begin_call()
take_told()
local function is_in_fields(member)
  return redis.call('HEXISTS', parked, member) == 1
end

-- The status of a delayed task names its former entry; its present entry came later. The entry of a task that
-- was enqueued with a delay came after its enqueueing. If a clock was set back, neither holds; then the due
-- time is the earlier one.
local function came_after(known)
  local from = tonumber((known[3] or ''):match('^(%d+)%-%d+$') or known[5]) or 0
  return math.min(from, tonumber(known[8]) or from)
end

local function verdict_of(known, is_second)
  local is, entry, member = known[1], known[2], known[3]
  if is_live(is) then
    local kept_until = tonumber(known[10]) or 0
    if has_place(entry, member, kept_until) or member and is_in_fields(member) then return 0 end
    -- The task is held by a flow.
    if not entry and known[11] and redis.call('EXISTS', key_of(status, id, 'flow')) == 1 then return 0 end
    return (entry or is_second) and 5 or 6
  end
  if redis.call('EXISTS', status) == 0 then return 0 end
  local is_delayed = member and (redis.call('ZSCORE', delayed, member) or is_in_fields(member))
  if is and (entry and exists(entry) or is_delayed) then return 4 end
  if redis.call('PTTL', status) == -1 then return 3 end
  return is and 1 or 0
end

local function mend(verdict, known)
  if verdict == 3 then
    redis.call('PEXPIRE', status, retention)
    return 1
  end
  local is_ended = verdict == 5 and end_lost(status, marker, id,
    known[2] and 'its entry was deleted from the stream'
      or 'it is neither delayed nor in the stream any more')
  return is_ended and 1 or 0
end

local out = {}
each_task(function(i)
  local known = redis.pcall('HMGET', status, 'status', 'entry', 'parked_as', 'attempt', 'enqueued_at',
    'started_at', 'finished_at', 'due_at', 'marker', 'deleted', 'joins')
  if known.err then
    out[i] = { 2, '', 0, false, false, 0 }
  else
    local look = ''
    for n = 1, 9 do look = look .. (known[n] or '') .. '/' end
    local is_second = before ~= ''
    local verdict = is_second and look ~= before and 0 or verdict_of(known, is_second)
    local mended = is_second and mends == '1' and mend(verdict, known) or 0
    out[i] = { verdict, look, came_after(known), known[9], known[1], mended }
  end
end)
return out
