-- Brings a dead letter back into its queue, as a task on its first attempt, or says what would become of it.
--
-- KEYS  stream, dead, status
-- ARGV  group, retention, window, letter (the dead letter's entry), enqueued_at, only_says (1: says what it
--       would return, and writes nothing), fields... (if it only says it: tq-id, tq-flow and tq-joins are
--       enough)
-- Returns one of
--   1: the task is in its queue
--   2: the task is in its queue, but the flow that it belongs to, or joins, is not known any more
--   0: nothing was written: the dead letter does not exist (any more); or its producer sent the id again, and
--      that task has completed, runs, or is being stopped; or a flow holds the task with this id
begin_call()
take_told()
local fields = { unpack(ARGV, fields_at) }
if not fields_in(dead, letter) then return 0 end
local state, known_entry, _, _, kept_until = place_of(status)
local runs = state == 'PROCESSING' and known_entry and (exists(known_entry) or kept_until > now)
local id = value_in(fields, 'tq-id') or letter
if state == 'COMPLETED' or runs or mark_of(status, '') or is_held(status, id) then return 0 end

-- The flow that a field of the dead letter names. The letter may be forged, so a flow has to know its child,
-- and a task joins no flow but its own.
local function flow_named(field, value)
  if field == 'flow' then return select(2, flows.of_child(value, id)) end
  return value == key_of(status, id, 'flow') and value
end

local reply, notes, flow_of = 1, {}, {}
for field, name in pairs({ flow = 'tq-flow', joins = 'tq-joins' }) do
  local value = value_in(fields, name)
  local flow = value and flow_named(field, value)
  if flow and redis.pcall('HEXISTS', flow, 'left') == 1 then
    notes[field], flow_of[field] = value, flow
  elseif value then
    reply = 2
  end
end
if only_says == '1' then return reply end
-- The task waits for its first attempt from now on. An operation that began before this call sees by
-- `tq-requeued-at` that the task came later, although it was enqueued earlier.
append(fields, 'tq-due-at', now_text, 'tq-requeued-at', now_text)
local entry = redis.call('XADD', stream, '*', unpack(fields))
redis.call('XDEL', dead, letter)
set_status(status, 'status', 'PENDING', 'attempt', 1, 'enqueued_at', enqueued_at, 'entry', entry)
forget_end(status, 'error', 'progress', 'note', 'due_at', 'started_at', 'parked_as')

-- Its end counts for the flow that it belongs to, or that it joins, which may be about to expire. The end of
-- a task that joins it decides on that again. A requeued child has a long time to complete.
for field, noted in pairs(notes) do
  redis.call('HSET', status, field, noted)
  for _, key in ipairs({ flow_of[field], flow_of[field] .. ':results' }) do
    if field == 'joins' then
      redis.call('PERSIST', key)
    else
      redis.call('PEXPIRE', key, FAILED_FLOW_LIVES, 'GT')
    end
  end
end
task_event(value_in(fields, 'tq-id') or entry, 'PENDING', 'attempt', '1')
return reply
