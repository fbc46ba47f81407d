-- Decides on one suspicion about a task, and mends what is wrong, if asked to.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 dead letters · 5 status of the task
--       6 marker of an idempotency key (the stream: none) · 7 history
-- ARGV  1 what is suspected · 2 1: mend · 3 group · 4 the entry, member or task id that it is about
--       5 task id · 6 retention ms · 7 window ms
--       8 lease ms; for a task that may be stuck: the ms after which it is
-- Gives { 1 when it is so, 1 when it was mended }.
--
-- The script looks and writes at one moment, so a task that has moved on is left alone. Safe to run again.
local subject, id = ARGV[4], ARGV[5]
local rules = rules_of(KEYS[1], KEYS[4], ARGV[6], ARGV[7])
local patience = tonumber(ARGV[8])

local function entry_of(stream)
  return redis.call('XRANGE', stream, subject, subject)[1]
end

local function is_live(status)
  return status == 'PENDING' or status == 'PROCESSING'
end

local judges = {}

-- Pending, but its entry was deleted. Its host may still end the attempt, so the entry is not acknowledged
-- before the lease ends.
judges['deleted-entry'] = function(mends)
  local pending = pending_of(KEYS[1], ARGV[3], subject)
  if not pending or entry_of(KEYS[1]) then return false end
  if mends and pending[3] >= patience then
    redis.call('XACK', KEYS[1], ARGV[3], subject)
    note_lost(rules, KEYS[5], KEYS[6], id, subject)
    return true, true
  end
  return true
end

-- Read by the group, but not pending: nothing will deliver it. It comes back as a new entry, unless its task
-- has ended under it.
judges['undeliverable'] = function(mends)
  local entry = entry_of(KEYS[1])
  if not entry then return false end
  local last = last_delivered(KEYS[1], ARGV[3])
  if passed_over(KEYS[1], KEYS[7], ARGV[3], last, subject) ~= 1 then return false end
  if not mends then return true end
  local known = redis.pcall('HMGET', KEYS[5], 'status', 'entry')
  if known.err then known = {} end
  -- The status of a task whose id is that of its entry need not name the entry.
  if known[1] and (known[2] or id) == subject and not is_live(known[1]) then
    redis.call('XDEL', KEYS[1], subject)
    return true, true
  end
  local fields = entry[2]
  -- More values do not fit into one call.
  if #fields > 7000 then return true end
  if not id_in(fields) then
    fields[#fields + 1] = 'tq-id'
    fields[#fields + 1] = subject
    fields[#fields + 1] = 'tq-enqueued-at'
    fields[#fields + 1] = string.match(subject, '^%d+')
  end
  local new = redis.call('XADD', KEYS[1], '*', unpack(fields))
  redis.call('XDEL', KEYS[1], subject)
  if known[2] == subject then redis.call('HSET', KEYS[5], 'status', 'PENDING', 'entry', new) end
  return true, true
end

-- Delayed, but its fields were deleted.
judges['delayed-without-fields'] = function(mends)
  if not redis.call('ZSCORE', KEYS[2], subject) then return false end
  if redis.call('HEXISTS', KEYS[3], subject) == 1 then return false end
  if not mends then return true end
  redis.call('ZREM', KEYS[2], subject)
  local known = redis.pcall('HMGET', KEYS[5], 'status', 'parked_as')
  if not known.err and is_live(known[1]) and known[2] == subject then
    end_lost(rules, KEYS[5], KEYS[6], id, 'its fields were deleted while it was delayed')
  end
  return true, true
end

-- The fields exist, but without a due time: the task is due now.
judges['fields-without-delay'] = function(mends)
  if redis.call('HEXISTS', KEYS[3], subject) == 0 then return false end
  if redis.call('ZSCORE', KEYS[2], subject) then return false end
  if mends then redis.call('ZADD', KEYS[2], now_ms(), subject) end
  return true, mends
end

-- The task can never run. It is made due now, so that its delivery buries it where an operator can see it.
judges['unreadable-fields'] = function(mends)
  local now = now_ms()
  local due = redis.call('ZSCORE', KEYS[2], subject)
  local packed = redis.call('HGET', KEYS[3], subject)
  if not due or tonumber(due) <= now or not packed or parked_fields(packed) then return false end
  if mends then redis.call('ZADD', KEYS[2], now, subject) end
  return true, mends
end

-- The key of a task that has ended or is not known any more.
judges['orphaned-key'] = function(mends)
  if first_task(KEYS[1], KEYS[6]) ~= id or redis.call('PTTL', KEYS[6]) ~= -1 then return false end
  if is_live(redis.pcall('HGET', KEYS[5], 'status')) then return false end
  if redis.call('ZSCORE', KEYS[2], 'new/' .. id) then return false end
  if mends then redis.call('PEXPIRE', KEYS[6], rules.window) end
  return true, mends
end

-- Dead, but its status is that of a living or completed task. The time of enqueueing distinguishes it from
-- another task with its id.
judges['dead-but-alive'] = function()
  local letter = entry_of(KEYS[4])
  if not letter or (id_in(letter[2]) or subject) ~= id then return false end
  local known = redis.pcall('HMGET', KEYS[5], 'status', 'enqueued_at')
  if known.err or not (is_live(known[1]) or known[1] == 'COMPLETED') then return false end
  local at
  for i = 1, #letter[2], 2 do
    if letter[2][i] == 'tq-enqueued-at' then at = letter[2][i + 1] end
  end
  return at == known[2]
end

-- The first delayed task that is due is not moved.
judges['stuck-delayed'] = function()
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  return first[1] == subject and tonumber(first[2]) < now_ms() - patience
end

-- The first abandoned entry is not taken over.
judges['stuck-claim'] = function()
  local idle = redis.pcall('XPENDING', KEYS[1], ARGV[3], 'IDLE', patience, '-', '+', 1)
  return not idle.err and idle[1] ~= nil and idle[1][1] == subject
end

local so, mended = judges[ARGV[1]](ARGV[2] == '1')
return { so and 1 or 0, mended and 1 or 0 }
