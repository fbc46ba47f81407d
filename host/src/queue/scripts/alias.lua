-- Notes which tasks have which aliases.
--
-- KEYS  stream; each task: alias (a sorted set of ids by the time of enqueueing)
-- ARGV  most (how many tasks an alias keeps, the newest); each task: id, enqueued_at (ms; empty: now), lives
--       (ms that it lives at least from now on)
-- Returns how many tasks were noted. Safe to run again.
--
-- A key of another type in the place of an alias is replaced: the key is tqhost's.
begin_call()
local noted = 0
each_task(function(i)
  local at, left = enqueued_at ~= '' and enqueued_at or now_text, redis.call('PTTL', alias)
  redis.call('PERSIST', alias)
  local added = redis.pcall('ZADD', alias, at, id)
  if type(added) == 'table' then
    redis.call('DEL', alias)
    redis.call('ZADD', alias, at, id)
  end
  redis.call('ZREMRANGEBYRANK', alias, 0, -most - 1)
  redis.call('PEXPIRE', alias, math.max(left, tonumber(lives)))
  noted = i
end)
return noted
