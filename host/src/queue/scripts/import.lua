-- Brings back a dead letter that a job keeps, unless its task is dead already or is known to be elsewhere.
--
-- KEYS  stream, status, dead, kept
-- ARGV  group, retention, letter (its entry among the kept ones)
-- Returns 1; or 0, and then nothing was written: it is not kept (any more), the status names a dead letter
--   that exists, or the task has not ended, is not stopped yet, or has completed.
--
-- The status is kept for at least a day, also where the queue keeps none, so that the import of a file that
-- has the task, too, finds it.
begin_call()
local bad = wrong_type(dead, 'stream', kept, 'stream')
if bad then return bad end
local found = redis.call('XRANGE', kept, letter, letter)[1]
if not found then return 0 end
local fields = found[2]
local is, noted = unpack(redis.pcall('HMGET', status, 'status', 'dead'))
if noted and string.match(noted, '^%d+%-%d+$') and #redis.call('XRANGE', dead, noted, noted) > 0 then
  return 0
end
if is_live(is) or is == 'COMPLETED' or mark_of(status, '') == 'elsewhere' then return 0 end
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
