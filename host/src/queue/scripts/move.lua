-- Turns items that producers LPUSHed to a list into tasks, oldest first.
--
-- KEYS  stream, delayed, list
-- ARGV  limit, most (tasks that may wait or run)
-- Returns how many were moved. At any moment an item is in the list or in the stream.
-- A full queue takes nothing.
begin_call()
local bad = wrong_type(stream, 'stream', list, 'list')
if bad then return bad end
local free, moved = math.min(room(most), tonumber(limit)), 0
while moved < free do
  local item = redis.call('LINDEX', list, -1)
  if not item then break end
  redis.call('XADD', stream, '*', 'data', item)
  redis.call('RPOP', list)
  moved = moved + 1
end
return moved
