-- Marks claimed tasks as PROCESSING, as far as this consumer still owns them.
--
-- KEYS  1 stream · 2… status key of each task
-- ARGV  1 group · 2 consumer · 3 plugin · then for each task: entry, attempt, enqueued-at ms
-- Gives 1 or 0 for each task: owned (run it) or not (somebody else has it: drop it).
--
-- A status that cannot be written for lack of memory does not keep the task from running: settling frees memory.
-- Safe to run again: it writes the same.
local now = now_ms()
local out = {}
for i = 2, #KEYS do
  local at = 4 + (i - 2) * 3
  if owned(KEYS[1], ARGV[1], ARGV[at], ARGV[2]) then
    out[i - 1] = 1
    if set_status(KEYS[i], 'status', 'PROCESSING', 'attempt', ARGV[at + 1], 'plugin', ARGV[3], 'consumer', ARGV[2],
        'enqueued_at', ARGV[at + 2], 'started_at', now) then
      redis.call('HDEL', KEYS[i], 'progress', 'note', 'due_at', 'finished_at', 'result')
      redis.call('PERSIST', KEYS[i])
    end
  else
    out[i - 1] = 0
  end
end
return out
