-- Makes tasks of what producers LPUSHed to a list, oldest first.
--
-- KEYS  1 stream · 2 delayed · 3 list
-- ARGV  1 how many at most · 2 the most tasks that may wait or run
-- Gives how many were moved. An item is in the list or in the stream at any moment.
--
-- An item is only looked at before its XADD, which is refused under maxmemory: then it stays where it is. A full queue takes nothing.
local bad = wrong_type(KEYS[1], 'stream') or wrong_type(KEYS[3], 'list')
if bad then return bad end
local room = tonumber(ARGV[2]) - redis.call('XLEN', KEYS[1]) - redis.call('ZCARD', KEYS[2])
local moved = 0
while moved < math.min(room, tonumber(ARGV[1])) do
  local item = redis.call('LINDEX', KEYS[3], -1)
  if not item then break end
  redis.call('XADD', KEYS[1], '*', 'data', item)
  redis.call('RPOP', KEYS[3])
  moved = moved + 1
end
return moved
