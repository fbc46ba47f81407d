-- Accepts a new task.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 status · 5 marker of the idempotency key (the stream: none)
--       · 6 status of the task that has this key (the stream: not known)
-- ARGV  1 group · 2 retention ms · 3 window ms · 4 delay ms (0: at once) · 5 task id · 6 the most tasks that
--       may wait or run · 7… the task's fields, name and value; tq-id is among them
-- Gives one of
--   1: accepted
--   0: a task of this id is known already (the reply to an earlier call was lost)
--   -1: the queue is full
--   -2: the task that had the key was lost, and its key is free now; call again
--   the id of the task that has the idempotency key: nothing was written
begin_call()
take_told()
local status, marker, holder, id = KEYS[4], KEYS[5], KEYS[6], ARGV[5]
local bad = wrong_type(stream, 'stream', KEYS[2], 'zset', KEYS[3], 'hash', status, 'hash')
if bad then return bad end
if redis.call('EXISTS', status) == 1 then return 0 end
local first = first_task(marker)
if first then return holder ~= stream and is_gone(holder, marker, first) and -2 or first end
if room(ARGV[6]) <= 0 then return -1 end
accept(here, status, id, tonumber(ARGV[4]), { unpack(ARGV, 7) }, marker)
return 1
