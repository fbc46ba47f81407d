-- Enqueues the task of one time of a schedule: once, however many hosts call.
--
-- KEYS  stream, delayed, schedule, status
-- ARGV  name (of the schedule), time (ms), id (of the task, made of the time), most (tasks that may wait or
--       run), late (how late it may be, ms; -1: any time), fields... (tq-id is among them)
-- Returns one of
--   1: enqueued
--   0: this time or a later one was handled before (perhaps by this call, whose reply was lost)
--   -1: the queue is full; nothing was written
--   -2: it is too late; the time counts as handled, and nothing was enqueued
begin_call()
local bad = wrong_type(stream, 'stream', delayed, 'zset', schedule, 'hash', status, 'hash')
if bad then return bad end
local at = tonumber(time)
late = tonumber(late)
if (tonumber(redis.call('HGET', schedule, name)) or 0) >= at then return 0 end
-- The task may exist: two schedules share a time while hosts move between them, or a clock went back.
local result = 1
if redis.call('EXISTS', status) == 1 then
  result = 0
elseif late >= 0 and now - at > late then
  result = -2
elseif room(most) <= 0 then
  return -1
else
  accept(here, status, id, 0, { unpack(ARGV, fields_at) }, stream)
end
redis.call('HSET', schedule, name, time)
return result
