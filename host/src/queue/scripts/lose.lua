-- Notes on its status that a task is lost: somebody deleted its entry.
--
-- KEYS  1 status of the task that had the entry's id
-- ARGV  1 entry · 2 retention ms
-- Gives 1 when that task was in this entry and had not ended. A task with an id of its own cannot be found by its entry.
if redis.pcall('HGET', KEYS[1], 'entry') ~= ARGV[1] then return 0 end
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'PENDING' and status ~= 'PROCESSING' then return 0 end
redis.call('HSET', KEYS[1], 'status', 'FAILED', 'error', 'its entry was deleted by somebody else', 'finished_at', now_ms())
end_status(KEYS[1], tonumber(ARGV[2]))
return 1
