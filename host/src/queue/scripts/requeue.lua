-- Brings a dead letter back into its queue, as a task on its first attempt.
--
-- KEYS  1 stream · 2 dead letters · 3 status
-- ARGV  1 the dead letter's entry id · 2 enqueued-at ms · 3… the task's fields, name and value
-- Gives 1, or 0 when the dead letter does not exist (any more): then nothing was written.
if #redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1]) == 0 then return 0 end
local entry = redis.call('XADD', KEYS[1], '*', unpack(rest(3)))
redis.call('XDEL', KEYS[2], ARGV[1])
set_status(KEYS[3], 'status', 'PENDING', 'attempt', 1, 'enqueued_at', ARGV[2], 'entry', entry)
redis.call('HDEL', KEYS[3], 'error', 'result', 'progress', 'note', 'due_at', 'started_at', 'finished_at',
  'parked_as', 'dead', 'duplicate_of')
redis.call('PERSIST', KEYS[3])
return 1
