-- Gives tasks back to a consumer that knows nothing of tqhost: each comes to the end of the stream as a new
-- entry, or to the end of the list that is read first, without the fields that begin with tq-.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 list (the stream: the queue has none) · 5 owners · 6 tracks
-- ARGV  1 group · 2 which entries of the stream: `pending` ones; `unread` ones whose tasks do not have their
--       turn; `all` of both · 3 1: also what is delayed by its producer · 4 lease ms: what is pending under
--       a lease that lasts may still run, and is left (0: the hosts have ended) · 5… entries of the stream,
--       or members of the delayed tasks
-- Gives how many were given back, and how many were left: under a lease, delayed by their producer, of a
--   flow, or, where there is a list, without the field data.
--
-- Safe to run again: each goes from one place to the other in this step. A task that has its turn loses it,
-- and passes it on to nobody: those that are held are given back, too.
local list = KEYS[4] ~= stream and KEYS[4]
local bad = wrong_type(stream, 'stream', KEYS[2], 'zset', KEYS[3], 'hash', KEYS[5], 'hash', KEYS[6], 'zset')
  or list and wrong_type(list, 'list')
if bad then return bad end
local which, lease, done, left, last = ARGV[2], tonumber(ARGV[4]), 0, 0, last_delivered() or '0-0'

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

-- Takes the turn from a task that is given back.
local function end_turn(id)
  local noted = redis.call('HGET', KEYS[5], id)
  if not noted then return end
  redis.call('HDEL', KEYS[5], id)
  redis.call('ZREM', KEYS[6], string.match(noted, '^%S+') .. '/b/' .. id)
end

local function give_entry(entry)
  local is_pending, fields = pending_of(entry), fields_of(entry)
  if is_pending and is_pending[3] < lease then return false end
  if not fields then
    redis.call('XACK', stream, group, entry)
    return nil
  end
  -- Entries that were read and are not pending were done before tqhost came.
  if not is_pending and (which == 'pending' or not comes_after(entry, last)) then return nil end
  local id = value_in(fields, 'tq-id') or entry
  local is_begun = is_pending or redis.call('HEXISTS', KEYS[5], id) == 1
  if which == 'unread' and is_begun then return nil end
  if not give(fields) then return false end
  end_turn(id)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
  return true
end

local function give_delayed(member)
  local fields = parked_fields(redis.call('HGET', KEYS[3], member) or '')
  if not fields or value_in(fields, 'tq-joins') or value_in(fields, 'tq-flow') then return false end
  -- Only what a producer delayed says when it is due, and only until it runs: an attempt that is not charged
  -- leaves a task at its first attempt.
  local due = tonumber(value_in(fields, 'tq-due-at') or 0) or 0
  if due > now and ARGV[3] ~= '1' or not give(fields) then return false end
  end_turn(value_in(fields, 'tq-id') or member)
  redis.call('ZREM', KEYS[6], member)
  redis.call('ZREM', KEYS[2], member)
  redis.call('HDEL', KEYS[3], member)
  return true
end

for i = 5, #ARGV do
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
