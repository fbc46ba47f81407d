-- Accepts a new task.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 status · 5 marker of the idempotency key (the stream: none)
--       · 6 status of the task that has this key (the stream: not known)
-- ARGV  1 delay ms (0: at once) · 2 task id · 3 the most tasks that may wait or run · 4 group
--       · 5 retention ms · 6… the task's fields, name and value; tq-id is among them
-- Gives one of
--   1: accepted
--   0: a task of this id is known already (the reply to an earlier call was lost)
--   -1: the queue is full
--   -2: the task that had the key was lost, and its key is free now; call again
--   the id of the task that has the idempotency key: nothing was written
--
-- Redis refuses the first write when its memory is full (maxmemory), so no task is half accepted.
local bad = wrong_type(KEYS[1], 'stream') or wrong_type(KEYS[2], 'zset') or wrong_type(KEYS[3], 'hash')
  or wrong_type(KEYS[4], 'hash')
if bad then return bad end
if redis.call('EXISTS', KEYS[4]) == 1 then return 0 end
local first = first_task(KEYS[1], KEYS[5])
if first then
  local is_free = KEYS[6] ~= KEYS[1]
    and is_gone(rules_of(KEYS[1], nil, ARGV[5], 0), KEYS[2], ARGV[4], KEYS[6], KEYS[5], first)
  return is_free and -2 or first
end
if redis.call('XLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return -1 end
local now = now_ms()
local delay = tonumber(ARGV[1])
local fields = rest(6)
local place, at
fields[#fields + 1] = 'tq-enqueued-at'
fields[#fields + 1] = now
if delay == 0 then
  place, at = 'entry', redis.call('XADD', KEYS[1], '*', unpack(fields))
else
  redis.call('ZADD', KEYS[2], now + delay, 'new/' .. ARGV[2])
  redis.call('HSET', KEYS[3], 'new/' .. ARGV[2], cmsgpack.pack(fields))
  place, at = 'parked_as', 'new/' .. ARGV[2]
end
if KEYS[5] ~= KEYS[1] then
  redis.call('SET', KEYS[5], ARGV[2])
  redis.call('HSET', KEYS[4], 'marker', KEYS[5])
end
redis.call('HSET', KEYS[4], 'status', 'PENDING', 'attempt', 1, 'enqueued_at', now, 'due_at', now + delay,
  place, at, 'enqueued', '1')
return 1
