-- Notes how far another program's consumers had come in a group, so that none of their entries runs again.
-- Creates the group where it is missing. Notes that other groups may lose their entries.
--
-- KEYS  stream, history, adopted
-- ARGV  group, from (where a group that is missing begins: the entry before its first one; empty: nowhere; $:
--       the end), is_done (1: all that the group was given so far is history), groups... (to confirm)
-- Returns the note, or false where the group is missing and was not to be created. Safe to run again.
begin_call()
local bad = wrong_type(stream, 'stream', history, 'hash', adopted, 'hash')
if bad then return bad end
local last = last_delivered()
if not last then
  if from == '' then return false end
  local created = redis.pcall('XGROUP', 'CREATE', stream, group, from, 'MKSTREAM')
  if created.err then return created end
  redis.call('HSET', history, group, last_delivered())
elseif is_done == '1' then
  redis.call('HSET', history, group, last)
else
  redis.call('HSETNX', history, group, last)
end
for i = groups_at, #ARGV do redis.call('HSETNX', adopted, ARGV[i], now_text) end
return redis.call('HGET', history, group)
