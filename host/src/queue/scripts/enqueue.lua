-- Accepts a new task.
--
-- KEYS  stream, delayed, parked, status, marker, holder
-- ARGV  group, retention, window, delay (ms; 0: at once), id, most (tasks that may wait or run), fields...
--       (tq-id is among them)
-- Returns one of
--   1: accepted
--   0: a task of this id is known already (the reply to an earlier call was lost)
--   -1: the queue is full
--   -2: the task that had the key was lost, and its key is free now; call again
--   the id of the task that has the idempotency key: nothing was written
begin_call()
take_told()
local bad = wrong_type(stream, 'stream', delayed, 'zset', parked, 'hash', status, 'hash')
if bad then return bad end
if redis.call('EXISTS', status) == 1 then return 0 end
local first = first_task(marker)
if first then return holder ~= stream and end_if_gone(holder, marker, first) and -2 or first end
if room(most) <= 0 then return -1 end
accept(here, status, id, tonumber(delay), { unpack(ARGV, fields_at) }, marker)
return 1
