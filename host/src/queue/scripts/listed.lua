-- Lists delayed tasks by the time when they are due, or those that are held (turns.lua).
--
-- KEYS  delayed, parked
-- ARGV  is_held (1: only held tasks), due (time of the task after which the list goes on; empty: from the
--       beginning), member (of this task), count
-- Returns for each { member, due time, its fields (none where they cannot be read) }. Writes nothing.
--
-- If the task is not delayed any more, the list goes on with the first task of its due time, so a task may
-- come twice, and none is left out.
begin_call()
local first = is_held == '1' and redis.call('ZCOUNT', delayed, '-inf', '(' .. HELD) or 0
if due ~= '' then
  local rank = redis.call('ZSCORE', delayed, member) == due and redis.call('ZRANK', delayed, member)
  local next = rank and rank + 1 or redis.call('ZCOUNT', delayed, '-inf', '(' .. due)
  first = math.max(first, next)
end
local found, out = redis.call('ZRANGE', delayed, first, first + count - 1, 'WITHSCORES'), {}
for i = 1, #found, 2 do
  if is_held ~= '1' and found[i + 1] == HELD then break end
  local packed = redis.call('HGET', parked, found[i])
  append(out, { found[i], found[i + 1], packed and parked_fields(packed) or {} })
end
return out
