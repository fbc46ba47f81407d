-- Moves delayed tasks that are due back into the stream.
--
-- KEYS  1 stream · 2 delayed · 3 parked
-- ARGV  1 how many at most
-- Gives moved, lost (members without fields), and ms until the next one is due (-1: none; 0: some are due already).
--
-- XADD is the first write, so that under maxmemory the whole step is refused and nothing moves. Fields that cannot be read would hold up
-- everything behind them: they go on as the value of one field, with an attempt that is none, so that their delivery buries them as malformed.
local function fields_of(member, packed)
  local read, fields = pcall(cmsgpack.unpack, packed)
  local good = read and type(fields) == 'table' and #fields > 0 and #fields % 2 == 0
  for i = 1, good and #fields or 0 do
    good = good and (type(fields[i]) == 'string' or type(fields[i]) == 'number')
  end
  return good and fields or { 'member', member, 'unreadable', packed, 'tq-attempt', 'unreadable' }
end

local bad = wrong_type(KEYS[1], 'stream')
if bad then return bad end
local now = now_ms()
local members = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, tonumber(ARGV[1]))
local moved, lost = 0, 0
for _, member in ipairs(members) do
  local packed = redis.call('HGET', KEYS[3], member)
  if packed then
    redis.call('XADD', KEYS[1], '*', unpack(fields_of(member, packed)))
    redis.call('HDEL', KEYS[3], member)
    moved = moved + 1
  else
    lost = lost + 1
  end
  redis.call('ZREM', KEYS[2], member)
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if #first == 0 then return { moved, lost, -1 } end
return { moved, lost, math.max(0, math.ceil(tonumber(first[2]) - now)) }
