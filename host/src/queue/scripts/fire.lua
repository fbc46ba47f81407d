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
--
-- The first write for a new task is its XADD. If Redis refuses it because its memory is full (maxmemory),
-- the time is still to be handled.
local bad = wrong_type(KEYS[1], 'stream') or wrong_type(KEYS[2], 'zset') or wrong_type(KEYS[3], 'hash')
  or wrong_type(KEYS[4], 'hash')
if bad then return bad end
local time = tonumber(ARGV[2])
if (tonumber(redis.call('HGET', KEYS[3], ARGV[1]) or '') or 0) >= time then return 0 end
-- The task may exist: two schedules share a time while hosts move between them, or a clock went back.
if redis.call('EXISTS', KEYS[4]) == 1 then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
  return 0
end
local now = now_ms()
local late = tonumber(ARGV[5])
if late >= 0 and now - time > late then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
  return -2
end
if redis.call('XLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then return -1 end
local fields = rest(6)
fields[#fields + 1] = 'tq-enqueued-at'
fields[#fields + 1] = now
local entry = redis.call('XADD', KEYS[1], '*', unpack(fields))
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[4], 'status', 'PENDING', 'attempt', 1, 'enqueued_at', now, 'due_at', now,
  'entry', entry, 'enqueued', '1')
return 1
