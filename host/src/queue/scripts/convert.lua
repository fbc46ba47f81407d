-- Turns a list whose key is that of the dead letters into a stream, the oldest item first. Each item becomes
-- an entry with the item as its field `data`.
--
-- KEYS  dead, dead_list (the list while its items become entries)
-- ARGV  limit, bytes
-- Returns how many were turned, and how many are left.
--
-- Producers LPUSH, so the oldest item is the last one. At any moment an item is in one place.
begin_call()
local done, size = 0, 0
limit, bytes = tonumber(limit), tonumber(bytes)
local bad = wrong_type(dead_list, 'list')
if bad then return bad end
if redis.call('TYPE', dead).ok == 'list' then
  if redis.call('EXISTS', dead_list) == 1 then
    return redis.error_reply('TQTYPE ' .. dead_list .. ' still has items of an earlier list')
  end
  redis.call('RENAME', dead, dead_list)
end
bad = wrong_type(dead, 'stream')
if bad then return bad end
while done < limit and size < bytes do
  local item = redis.call('LINDEX', dead_list, -1)
  if not item then break end
  redis.call('XADD', dead, '*', 'data', item)
  redis.call('RPOP', dead_list)
  done, size = done + 1, size + #item
end
return { done, redis.call('LLEN', dead_list) }
