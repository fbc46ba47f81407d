-- Brings a dead letter back into its queue, as a task on its first attempt.
--
-- KEYS  1 stream · 2 dead letters · 3 status
-- ARGV  1 the dead letter's entry id · 2 enqueued-at ms · 3… the task's fields, name and value
-- Gives 1, or 0 when the dead letter does not exist (any more): then nothing was written.
take_told()
local dead, status, fields = KEYS[2], KEYS[3], { unpack(ARGV, 3) }
if #redis.call('XRANGE', dead, ARGV[1], ARGV[1]) == 0 then return 0 end
local entry = redis.call('XADD', stream, '*', unpack(fields))
redis.call('XDEL', dead, ARGV[1])
set_status(status, 'status', 'PENDING', 'attempt', 1, 'enqueued_at', ARGV[2], 'entry', entry)
redis.call('HDEL', status, 'error', 'result', 'progress', 'note', 'due_at', 'started_at', 'finished_at',
  'parked_as', 'dead', 'duplicate_of')
-- Its end counts for the flow that it belongs to, or that it joins.
for field, name in pairs({ flow = 'tq-flow', joins = 'tq-joins' }) do
  local flow = value_in(fields, name)
  if flow then redis.call('HSET', status, field, flow) end
end
redis.call('PERSIST', status)
note(value_in(fields, 'tq-id') or entry, 'PENDING', 'attempt', '1')
return 1
