-- Marks claimed tasks as PROCESSING, as far as this consumer still owns them, and takes their idempotency keys.
--
-- KEYS  1 stream · then for each task: status, marker of its idempotency key (the stream: it has none)
-- ARGV  1 group · 2 consumer · 3 plugin · 4 retention ms · then for each task: entry, attempt, enqueued-at ms, id
-- Gives for each task 1: owned (run it), 0: not (somebody else has it: drop it); and of what is settled by this, because it must not run,
--   2: it was cancelled while it waited, 3: another task has its key, 4: somebody deleted the stream or the entry, and nobody will deliver
--   it again (its status says so).
--
-- The first write is a PERSIST, which is also allowed when there is no memory left: settling frees some, so tasks must go on.
-- The marker holds the id of the first task, so a task that lost its host is not taken for its own duplicate. Safe to run again.
local now = now_ms()
local retention = tonumber(ARGV[4])
local out = {}

local function end_unrun(entry, status, code)
  redis.call('XACK', KEYS[1], ARGV[1], entry)
  redis.call('XDEL', KEYS[1], entry)
  end_status(status, retention)
  return code
end

for i = 1, (#KEYS - 1) / 2 do
  local status, marker = KEYS[2 * i], KEYS[2 * i + 1]
  local at = 1 + 4 * i
  local entry, id = ARGV[at], ARGV[at + 3]
  if not owned(KEYS[1], ARGV[1], entry, ARGV[2]) then
    local gone = #redis.call('XRANGE', KEYS[1], entry, entry) == 0
    out[i] = gone and note_lost(status, entry, retention) and 4 or 0
  else
    redis.call('PERSIST', status)
    local first = first_task(KEYS[1], marker)
    if take_mark(status) then
      out[i] = end_unrun(entry, status, 2)
    elseif first and first ~= id then
      set_status(status, 'status', 'CANCELLED', 'duplicate_of', first, 'error', 'duplicate of ' .. first,
        'enqueued_at', ARGV[at + 2], 'finished_at', now, 'entry', entry)
      out[i] = end_unrun(entry, status, 3)
    else
      set_status(status, 'status', 'PROCESSING', 'attempt', ARGV[at + 1], 'plugin', ARGV[3], 'consumer', ARGV[2],
        'enqueued_at', ARGV[at + 2], 'started_at', now, 'entry', entry)
      redis.call('HDEL', status, 'progress', 'note', 'due_at', 'finished_at', 'result', 'parked_as')
      if marker ~= KEYS[1] then
        redis.call('SET', marker, id)
        redis.call('HSET', status, 'marker', marker)
      end
      out[i] = 1
    end
  end
end
return out
