-- Creates the consumer group, at the beginning of the stream, and the stream, where they are missing. Notes
-- once for each group which entry it was given last before tqhost came.
--
-- KEYS  1 stream · 2 history: group → the last entry that it was given before (0-0: tqhost made the group)
-- ARGV  1 group
-- Gives 1 when it created the group, 0 when the group existed.
--
-- A group that is created again is given every entry again, so none of them is history. Safe to run again.
local bad = wrong_type(KEYS[2], 'hash')
if bad then return bad end
local last = last_delivered()
if last then
  redis.call('HSETNX', KEYS[2], group, last)
  return 0
end
local created = redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
if created.err then return created end
redis.call('HSET', KEYS[2], group, '0-0')
return 1
