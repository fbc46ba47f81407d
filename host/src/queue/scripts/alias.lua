-- Notes which tasks have which aliases.
--
-- KEYS  1 stream · then for each task: its alias, a sorted set of ids by the time of enqueueing
-- ARGV  1 how many tasks an alias keeps at most, the newest · then for each task: id, enqueued-at ms (empty:
--       now), ms that the alias lives at least from now on
-- Gives how many tasks were noted. Safe to run again.
--
-- A key of another type in the place of an alias is replaced: the key is tqhost's.
begin_call()
for i = 2, #KEYS do
  local alias, at = KEYS[i], 3 * i - 4
  local enqueued_at = ARGV[at + 1] ~= '' and ARGV[at + 1] or now_text
  local left = redis.call('PTTL', alias)
  redis.call('PERSIST', alias)
  local added = redis.pcall('ZADD', alias, enqueued_at, ARGV[at])
  if type(added) == 'table' then
    redis.call('DEL', alias)
    redis.call('ZADD', alias, enqueued_at, ARGV[at])
  end
  redis.call('ZREMRANGEBYRANK', alias, 0, -ARGV[1] - 1)
  redis.call('PEXPIRE', alias, math.max(left, tonumber(ARGV[at + 2])))
end
return #KEYS - 1
