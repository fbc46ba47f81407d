-- Lists delayed tasks by the time when they are due, or those that are held (turns.lua).
--
-- KEYS  1 delayed · 2 parked
-- ARGV  1 '1': those that are held · 2 due time of the task after which the list goes on (empty: from the
--       beginning) · 3 its member · 4 how many
-- Gives for each { member, due time, its fields (none where they cannot be read) }. Writes nothing.
--
-- Where the task has left meanwhile, the list goes on with the first task of its due time, so a task may come
-- twice, and none is left out.
begin_call()
local first = ARGV[1] == '1' and redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. HELD) or 0
if ARGV[2] ~= '' then
  local rank = redis.call('ZSCORE', KEYS[1], ARGV[3]) == ARGV[2] and redis.call('ZRANK', KEYS[1], ARGV[3])
  local next = rank and rank + 1 or redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[2])
  first = math.max(first, next)
end
local found, out = redis.call('ZRANGE', KEYS[1], first, first + ARGV[4] - 1, 'WITHSCORES'), {}
for i = 1, #found, 2 do
  if ARGV[1] ~= '1' and found[i + 1] == HELD then break end
  local packed = redis.call('HGET', KEYS[2], found[i])
  append(out, { found[i], found[i + 1], packed and parked_fields(packed) or {} })
end
return out
