-- Moves delayed tasks that are due back into the stream, and lists those that are due next.
--
-- KEYS  1 stream · 2 delayed · 3 parked · then for each member to be moved: status of its task (the stream:
--       not known)
-- ARGV  1 how many to list at most · then the members to be moved
-- Gives moved, lost (members without fields), ms until the next one is due (-1: none; 0: some are due
--   already), and a list of those that are due: member, id of its task or ''. A member that is not due any
--   more stays where it is, so the script is safe to run again.
--
-- XADD is the first write: when the memory of Redis is full (maxmemory), it refuses the whole step. Fields
-- that cannot be read would block everything behind them. They go into the stream as the value of one field,
-- with an invalid attempt, so that their delivery buries them as malformed.
local bad = wrong_type(KEYS[1], 'stream')
if bad then return bad end
local now = now_ms()
local moved, lost = 0, 0

local function move(member, status)
  local due = redis.call('ZSCORE', KEYS[2], member)
  if not due or tonumber(due) > now then return end
  local packed = redis.call('HGET', KEYS[3], member)
  if packed then
    local fields = parked_fields(packed)
      or { 'member', member, 'unreadable', packed, 'tq-attempt', 'unreadable' }
    local entry = redis.call('XADD', KEYS[1], '*', unpack(fields))
    redis.call('HDEL', KEYS[3], member)
    -- From now on its status names its entry, so that a cancellation finds it.
    local known = status ~= KEYS[1] and redis.pcall('HMGET', status, 'status', 'parked_as')
    if known and not known.err and known[1] == 'PENDING' and known[2] == member then
      redis.call('HSET', status, 'entry', entry)
      redis.call('HDEL', status, 'parked_as')
    end
    moved = moved + 1
  else
    lost = lost + 1
  end
  redis.call('ZREM', KEYS[2], member)
end

for i = 2, #ARGV do move(ARGV[i], KEYS[i + 2]) end

-- About 1 MiB of fields at a time, for any number of members.
local due, size = {}, 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, tonumber(ARGV[1]))) do
  if size > 1048576 then break end
  local packed = redis.call('HGET', KEYS[3], member)
  local fields = packed and parked_fields(packed)
  size = size + #(packed or '')
  due[#due + 1] = member
  due[#due + 1] = fields and id_in(fields) or ''
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if #first == 0 then return { moved, lost, -1, due } end
return { moved, lost, math.max(0, math.ceil(tonumber(first[2]) - now)), due }
