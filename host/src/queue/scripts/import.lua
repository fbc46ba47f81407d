-- Brings back a dead letter that a job keeps, unless its task is dead already or is known to be elsewhere.
--
-- KEYS  stream, status, dead, kept
-- ARGV  group, retention, letter (its entry among the kept ones)
-- Returns 1; or 0 when nothing was written: the letter is not kept (any more), the status names a dead letter
--   that exists, or the task has not ended, is not stopped yet, or has completed.
--
-- The status is kept for at least a day, even if the queue keeps none, so that the import of a second file
-- with this task finds it.
begin_call()
local bad = wrong_type(dead, 'stream', kept, 'stream')
if bad then return bad end
local fields = fields_in(kept, letter)
if not fields then return 0 end
local state, noted = unpack(redis.pcall('HMGET', status, 'status', 'dead'))
if noted and is_entry_id(noted) and fields_in(dead, noted) then return 0 end
if is_live(state) or state == 'COMPLETED' or mark_of(status, '') == 'elsewhere' then return 0 end
local entry = redis.call('XADD', dead, '*', unpack(fields))
redis.call('XDEL', kept, letter)
set_status(status, 'status', 'FAILED', 'dead', entry, 'attempt', value_in(fields, 'tq-attempts') or '1',
  'error', value_in(fields, 'tq-error') or '', 'enqueued_at', value_in(fields, 'tq-enqueued-at') or now_text,
  'finished_at', value_in(fields, 'tq-failed-at') or now_text)
redis.call('HDEL', status, 'result', 'due_at', 'parked_as', 'entry', 'cancel', 'stops', 'duplicate_of')
redis.call('PEXPIRE', status, math.max(retention, 86400000))
-- The flow that the task joins goes on without it only while the flow knows its dead letter.
local joins = value_in(fields, 'tq-joins')
local id = value_in(fields, 'tq-id')
joins = joins and id and key_of(status, id, 'flow')
if joins and redis.pcall('HEXISTS', joins, 'letter') == 1 then
  redis.call('HSET', joins, 'letter', entry, 'dead', dead)
end
return 1
