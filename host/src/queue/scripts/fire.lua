-- Enqueues the task of one time of a schedule: once, however many hosts call.
--
-- KEYS  1 stream · 2 delayed · 3 schedule · 4 status
-- ARGV  1 the schedule's name · 2 the time, ms · 3 task id, made of the time · 4 the most tasks that may
--       wait or run · 5 how late it may be, ms (-1: any time) · 6… the task's fields, name and value;
--       tq-id is among them
-- Gives one of
--   1: enqueued
--   0: this time or a later one was handled before (perhaps by this call, whose reply was lost)
--   -1: the queue is full; nothing was written
--   -2: it is too late; the time counts as handled, and nothing was enqueued
begin_call()
local bad = wrong_type(stream, 'stream', KEYS[2], 'zset', KEYS[3], 'hash', KEYS[4], 'hash')
if bad then return bad end
local time, late = tonumber(ARGV[2]), tonumber(ARGV[5])
if (tonumber(redis.call('HGET', KEYS[3], ARGV[1])) or 0) >= time then return 0 end
-- The task may exist: two schedules share a time while hosts move between them, or a clock went back.
local result = 1
if redis.call('EXISTS', KEYS[4]) == 1 then
  result = 0
elseif late >= 0 and now - time > late then
  result = -2
elseif room(ARGV[4]) <= 0 then
  return -1
else
  accept(here, KEYS[4], ARGV[3], 0, { unpack(ARGV, 6) }, stream)
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
return result
