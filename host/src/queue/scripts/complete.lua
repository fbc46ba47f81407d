-- Ends a task: COMPLETED, with its result.
--
-- KEYS  1 stream · 2 status · 3 marker of the idempotency key (the stream: none)
-- ARGV  1 group · 2 entry · 3 retention ms · 4 attempt · 5 plugin · 6 consumer · 7 enqueued-at ms · 8 id · 9 window ms · 10 result (left out: none)
-- Gives 1, or 0 when somebody settled the task before: then nothing was written.
--
-- Not asked for: who owns the entry. A result is as good from a worker that lost its lease, if it comes first.
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
local retention = tonumber(ARGV[3])
if retention > 0 then
  set_status(KEYS[2], 'status', 'COMPLETED', 'attempt', ARGV[4], 'plugin', ARGV[5], 'consumer', ARGV[6],
    'enqueued_at', ARGV[7], 'finished_at', now_ms(), 'entry', ARGV[2])
  redis.call('HDEL', KEYS[2], 'error', 'due_at', 'parked_as')
  if ARGV[10] then redis.call('HSET', KEYS[2], 'result', ARGV[10]) end
end
end_status(KEYS[2], retention)
end_marker(KEYS[1], KEYS[3], ARGV[8], ARGV[9])
return 1
