-- Adds a dead letter that was exported, unless its task is dead already or is known to be elsewhere.
--
-- KEYS  stream, dead, status
-- ARGV  group, retention, fields... (of the dead letter)
-- Gives 1; 0 when the status names a dead letter that exists; 2 when the task has not ended or is not
--   stopped yet, or has completed. With 0 and 2 nothing was written.
--
-- The status is kept for at least a day, also where the queue keeps none, so that a repeated call finds it.
begin_call()
local fields = { unpack(ARGV, fields_at) }
local bad = wrong_type(dead, 'stream')
if bad then return bad end
local is, noted = unpack(redis.pcall('HMGET', status, 'status', 'dead'))
if noted and string.match(noted, '^%d+%-%d+$') and #redis.call('XRANGE', dead, noted, noted) > 0 then
  return 0
end
if is_live(is) or is == 'COMPLETED' or mark_of(status, '') == 'elsewhere' then return 2 end
local entry = redis.call('XADD', dead, '*', unpack(fields))
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
