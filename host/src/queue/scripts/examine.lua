-- Checks whether tasks are where their statuses say. Mends what is wrong, if asked to.
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
-- If a status changed between two looks, nothing is wrong, because its task moves. After verdict 6 the caller
-- searches the stream and the delayed tasks, and then looks again. If it did not find the task, and the
-- status did not change, the task is nowhere: verdict 5.
begin_call()
take_told()
local function is_parked(member)
  return redis.call('HEXISTS', parked, member) == 1
end

-- The earliest time (ms) of the entry under which a task may wait. The member of a delayed task is the id of
-- its former entry, and the present one came later. If the task was enqueued with a delay, its entry came
-- after the enqueueing. If a clock was set back, neither is true; then the due time is the earlier one.
local function came_after(known)
  local from = tonumber((known.parked_as or ''):match('^(%d+)%-%d+$') or known.enqueued_at) or 0
  return math.min(from, tonumber(known.due_at) or from)
end

local function verdict_of(known, is_second)
  local state, entry, member = known.status, known.entry, known.parked_as
  if is_live(state) then
    local kept_until = tonumber(known.deleted) or 0
    if has_place(entry, member, kept_until) or member and is_parked(member) then return 0 end
    -- The task is held by a flow.
    if not entry and known.joins and redis.call('EXISTS', key_of(status, id, 'flow')) == 1 then return 0 end
    return (entry or is_second) and 5 or 6
  end
  if redis.call('EXISTS', status) == 0 then return 0 end
  local is_delayed = member and (redis.call('ZSCORE', delayed, member) or is_parked(member))
  if state and (entry and exists(entry) or is_delayed) then return 4 end
  if redis.call('PTTL', status) == -1 then return 3 end
  return state and 1 or 0
end

local function mend(verdict, known)
  if verdict == 3 then
    redis.call('PEXPIRE', status, retention)
    return 1
  end
  local why = known.entry and 'its entry was deleted from the stream'
    or 'it is neither delayed nor in the stream any more'
  return verdict == 5 and end_lost(status, marker, id, why) and 1 or 0
end

-- The fields of a status that are read. The first nine are its form: one of them changes when a task moves.
local FIELDS = {
  'status', 'entry', 'parked_as', 'attempt', 'enqueued_at', 'started_at', 'finished_at', 'due_at', 'marker',
  'deleted', 'joins',
}
local IN_FORM = 9

local out = {}
each_task(function(i)
  local values = redis.pcall('HMGET', status, unpack(FIELDS))
  if values.err then
    out[i] = { 2, '', 0, false, false, 0 }
    return
  end
  local known, form = {}, ''
  for n, name in ipairs(FIELDS) do
    known[name] = values[n] or nil
    if n <= IN_FORM then form = form .. (values[n] or '') .. '/' end
  end
  local is_second = before ~= ''
  local has_moved = is_second and form ~= before
  local verdict = has_moved and 0 or verdict_of(known, is_second)
  local mended = is_second and mends == '1' and mend(verdict, known) or 0
  out[i] = { verdict, form, came_after(known), known.marker or false, known.status or false, mended }
end)
return out
