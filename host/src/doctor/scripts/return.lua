-- Gives tasks back to a consumer that knows nothing of tqhost: each comes to the end of the stream as a new
-- entry, or to the end of the list that is read first, without the fields that begin with tq-.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 list (the stream: the queue has none)
-- ARGV  1 group · 2 1: also entries that are not pending · 3 1: also what is delayed by its producer
--       · 4… entries of the stream, or members of the delayed tasks
-- Gives how many were given back, and how many were left: delayed by their producer, of a flow, or, where
--   there is a list, without the field data.
--
-- Safe to run again: each goes from one place to the other in this step.
local list = KEYS[4] ~= stream and KEYS[4]
local bad = wrong_type(stream, 'stream', KEYS[2], 'zset', KEYS[3], 'hash')
  or list and wrong_type(list, 'list')
if bad then return bad end
local done, left, last = 0, 0, last_delivered() or '0-0'

-- Adds a task. False if it cannot be added.
local function give(fields)
  local own = {}
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 3) ~= 'tq-' then append(own, fields[i], fields[i + 1]) end
  end
  if list then
    local item = value_in(own, 'data')
    return item and redis.call('RPUSH', list, item)
  end
  return #own > 0 and #own <= 7000 and redis.call('XADD', stream, '*', unpack(own))
end

local function give_entry(entry)
  local is_pending, fields = pending_of(entry), fields_of(entry)
  if not fields then
    redis.call('XACK', stream, group, entry)
    return nil
  end
  -- Entries that were read and are not pending were done before tqhost came.
  if not is_pending and (ARGV[2] ~= '1' or not comes_after(entry, last)) then return nil end
  if not give(fields) then return false end
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
  return true
end

local function give_delayed(member)
  local fields = parked_fields(redis.call('HGET', KEYS[3], member) or '')
  if not redis.call('ZSCORE', KEYS[2], member) then return nil end
  if not fields or value_in(fields, 'tq-joins') or value_in(fields, 'tq-flow') then return false end
  local has_run = (tonumber(value_in(fields, 'tq-attempt') or 1) or 1) > 1 or value_in(fields, 'tq-deferrals')
    or value_in(fields, 'tq-crashes')
  local is_due = tonumber(redis.call('ZSCORE', KEYS[2], member)) <= now
  if not has_run and not is_due and ARGV[3] ~= '1' or not give(fields) then return false end
  redis.call('ZREM', KEYS[2], member)
  redis.call('HDEL', KEYS[3], member)
  return true
end

for i = 4, #ARGV do
  -- A delayed task's member may have the form of an entry's id: it is that of its former entry.
  local given
  if redis.call('ZSCORE', KEYS[2], ARGV[i]) then
    given = give_delayed(ARGV[i])
  elseif string.match(ARGV[i], '^%d+%-%d+$') then
    given = give_entry(ARGV[i])
  end
  if given then done = done + 1 elseif given == false then left = left + 1 end
end
return { done, left }
