-- Notes on its status that a task is lost: somebody deleted its entry.
--
-- KEYS  1 status of the task that had the entry's id
-- ARGV  1 entry · 2 retention ms
-- Gives 1 when it was noted. A task with an id of its own cannot be found by its entry; one that was never begun has no status before this.
local known = redis.pcall('HMGET', KEYS[1], 'status', 'entry')
if known.err then return 0 end
local status = known[1]
if status and (known[2] ~= ARGV[1] or (status ~= 'PENDING' and status ~= 'PROCESSING')) then return 0 end
if tonumber(ARGV[2]) == 0 and not status then return 0 end
redis.call('HSET', KEYS[1], 'status', 'FAILED', 'error', 'lost: its entry was deleted from the stream', 'finished_at', now_ms())
end_status(KEYS[1], tonumber(ARGV[2]))
return 1
