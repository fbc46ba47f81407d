-- Turns a list at the place of the dead letters into a stream, the oldest item first. Each item becomes an
-- entry with the item as its field `data`.
--
-- KEYS  1 dead letters · 2 the list while its items become entries
-- ARGV  1 how many at most · 2 bytes beyond which no more are turned (at least one is)
-- Gives how many were turned, and how many are left.
--
-- A producer LPUSHes, so the oldest item is the last one. At any moment an item is in one place.
begin_call()
local limit, bytes, done, size = tonumber(ARGV[1]), tonumber(ARGV[2]), 0, 0
local bad = wrong_type(KEYS[2], 'list')
if bad then return bad end
if redis.call('TYPE', KEYS[1]).ok == 'list' then
  if redis.call('EXISTS', KEYS[2]) == 1 then
    return redis.error_reply('TQTYPE ' .. KEYS[2] .. ' still has items of an earlier list')
  end
  redis.call('RENAME', KEYS[1], KEYS[2])
end
bad = wrong_type(KEYS[1], 'stream')
if bad then return bad end
while done < limit and size < bytes do
  local item = redis.call('LINDEX', KEYS[2], -1)
  if not item then break end
  redis.call('XADD', KEYS[1], '*', 'data', item)
  redis.call('RPOP', KEYS[2])
  done, size = done + 1, size + #item
end
return { done, redis.call('LLEN', KEYS[2]) }
