-- Notes how far another consumer's group had come, so that nothing of it runs again; creates the group where
-- it is missing; notes that other groups may lose their entries.
--
-- KEYS  1 stream · 2 history: group → the last entry that it was given before tqhost came
--       3 adopted: another group → when an operator confirmed that its entries may be deleted
-- ARGV  1 group · 2 where a group that is missing begins: the entry before its first one (empty: nowhere; $:
--       the end) · 3 1: all that the group was given so far is history · 4… the groups to confirm
-- Gives the note, or false where the group is missing and was not to be created. Safe to run again.
begin_call()
local bad = wrong_type(stream, 'stream', KEYS[2], 'hash', KEYS[3], 'hash')
if bad then return bad end
local last = last_delivered()
if not last then
  if ARGV[2] == '' then return false end
  local created = redis.pcall('XGROUP', 'CREATE', stream, group, ARGV[2], 'MKSTREAM')
  if created.err then return created end
  redis.call('HSET', KEYS[2], group, last_delivered())
elseif ARGV[3] == '1' then
  redis.call('HSET', KEYS[2], group, last)
else
  redis.call('HSETNX', KEYS[2], group, last)
end
for i = 4, #ARGV do redis.call('HSETNX', KEYS[3], ARGV[i], now_text) end
return redis.call('HGET', KEYS[2], group)
