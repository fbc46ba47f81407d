-- Marks claimed tasks as PROCESSING, as far as this consumer still owns them.
--
-- KEYS  1 stream · 2… status key of each task
-- ARGV  1 group · 2 consumer · 3 plugin · 4 retention ms · then for each task: entry, attempt, enqueued-at ms
-- Gives for each task 1: owned (run it), 0: not (somebody else has it: drop it), 2: it was cancelled while it waited, and is settled by this.
--
-- A status that cannot be written for lack of memory does not keep the task from running: settling frees memory.
-- Safe to run again: it writes the same.
local now = now_ms()
local out = {}
for i = 2, #KEYS do
  local at = 5 + (i - 2) * 3
  if not owned(KEYS[1], ARGV[1], ARGV[at], ARGV[2]) then
    out[i - 1] = 0
  elseif redis.pcall('HGET', KEYS[i], 'cancel') == '1' then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
    redis.call('XDEL', KEYS[1], ARGV[at])
    redis.call('HDEL', KEYS[i], 'cancel')
    end_status(KEYS[i], tonumber(ARGV[4]))
    out[i - 1] = 2
  else
    out[i - 1] = 1
    if set_status(KEYS[i], 'status', 'PROCESSING', 'attempt', ARGV[at + 1], 'plugin', ARGV[3], 'consumer', ARGV[2],
        'enqueued_at', ARGV[at + 2], 'started_at', now, 'entry', ARGV[at]) then
      redis.call('HDEL', KEYS[i], 'progress', 'note', 'due_at', 'finished_at', 'result', 'parked_as')
      redis.call('PERSIST', KEYS[i])
    end
  end
end
return out
