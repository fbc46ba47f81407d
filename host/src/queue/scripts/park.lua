-- Ends an attempt without ending its task: retry, deferral, or release at shutdown.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 status
-- ARGV  1 group · 2 consumer · 3 entry · 4 delay ms (0: back into the stream at once) · 5 attempt that comes next · 6 error (empty: none)
--       7 enqueued-at ms · 8 ms from which the delay counts (0: now) · 9… the task's fields, name and value, as the next delivery is to carry them
-- Gives 1, or 0 when this consumer does not own the entry any more: then nothing was written. A task that was cancelled while it waited ends here.
--
-- Delayed tasks are filed under the entry they came from, not under their id: two tasks may bear one id.
local bad = wrong_type(KEYS[2], 'zset') or wrong_type(KEYS[3], 'hash')
if bad then return bad end
if not owned(KEYS[1], ARGV[1], ARGV[3], ARGV[2]) then return 0 end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.call('XDEL', KEYS[1], ARGV[3])
if take_mark(KEYS[4]) then return 1 end
local delay = tonumber(ARGV[4])
local fields = rest(9)
local now = now_ms()
local since = tonumber(ARGV[8])
if since == 0 then since = now end
local due = since + delay
local place, at
if due <= now then
  place, at = 'entry', redis.call('XADD', KEYS[1], '*', unpack(fields))
else
  redis.call('ZADD', KEYS[2], due, ARGV[3])
  redis.call('HSET', KEYS[3], ARGV[3], cmsgpack.pack(fields))
  place, at = 'parked_as', ARGV[3]
end
redis.pcall('HDEL', KEYS[4], 'progress', 'note', 'entry', 'parked_as')
set_status(KEYS[4], 'status', 'PENDING', 'attempt', ARGV[5], 'enqueued_at', ARGV[7], 'due_at', due, place, at)
if ARGV[6] ~= '' then redis.call('HSET', KEYS[4], 'error', ARGV[6]) end
return 1
