-- Turns items that producers LPUSHed to a list into tasks, oldest first.
--
-- KEYS  1 stream · 2 delayed · 3 list
-- ARGV  1 how many at most · 2 the most tasks that may wait or run
-- Gives how many were moved. At any moment an item is in the list or in the stream.
-- A full queue takes nothing.
begin_call()
local bad = wrong_type(stream, 'stream', KEYS[3], 'list')
if bad then return bad end
local most, moved = math.min(room(ARGV[2]), tonumber(ARGV[1])), 0
while moved < most do
  local item = redis.call('LINDEX', KEYS[3], -1)
  if not item then break end
  redis.call('XADD', stream, '*', 'data', item)
  redis.call('RPOP', KEYS[3])
  moved = moved + 1
end
return moved
