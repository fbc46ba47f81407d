-- Decides on one suspicion about a task, and mends what is wrong, if asked to.
--
-- KEYS  stream, delayed, parked, dead, history, status, marker
-- ARGV  group, retention, window, suspicion, mends, subject (the entry, member or task id that it is about),
--       id (of the task), patience (lease, ms; for a task that may be stuck: the ms after which it is)
-- Returns { 1 when it is so, 1 when it was mended }.
--
-- The script looks and writes at one moment, so a task that has moved on is left alone. Safe to run again.
begin_call()
take_told()
local judges = {}
patience = tonumber(patience)

local function entry_of(key)
  return redis.call('XRANGE', key, subject, subject)[1]
end

-- Pending, but its entry was deleted. Its host may still end the attempt, so the entry is not acknowledged
-- before the lease ends, nor while the end of its task is refused.
judges['deleted-entry'] = function(mends)
  local pending = pending_of(subject)
  if not pending or exists(subject) then return false end
  mends = mends and pending[3] >= patience and not (is_live(place_of(status)) and refuses_end(status, id))
  if mends then
    redis.call('XACK', stream, group, subject)
    note_lost(status, marker, id, subject)
  end
  return true, mends
end

-- Read by the group, but not pending: nothing will deliver it. It comes back as a new entry, unless its task
-- has ended under it.
judges['undeliverable'] = function(mends)
  local entry = entry_of(stream)
  if not entry or passed_over(history, last_delivered(), subject) ~= 1 then return false end
  if not mends then return true end
  local is, known_entry = place_of(status)
  -- The status of a task whose id is that of its entry need not name the entry.
  if is and (known_entry or id) == subject and not is_live(is) then
    redis.call('XDEL', stream, subject)
    return true, true
  end
  local fields = entry[2]
  keep_trusted(fields, status, id, subject)
  -- More values do not fit into one call.
  if #fields > 7000 then return true end
  if not value_in(fields, 'tq-id') then
    append(fields, 'tq-id', subject, 'tq-enqueued-at', string.match(subject, '^%d+'))
  end
  -- The deliveries of an entry that is not pending are not known. Fences add up.
  append(fields, 'tq-fence', '1')
  local new = redis.call('XADD', stream, '*', unpack(fields))
  redis.call('XDEL', stream, subject)
  if known_entry == subject or not is then set_status(status, 'status', 'PENDING', 'entry', new) end
  note(id, 'PENDING', 'attempt', value_in(fields, 'tq-attempt') or '1')
  return true, true
end

-- Delayed, but its fields were deleted. It stays there while its end is refused.
judges['delayed-without-fields'] = function(mends)
  if not redis.call('ZSCORE', delayed, subject) then return false end
  if redis.call('HEXISTS', parked, subject) == 1 then return false end
  if not mends then return true end
  local is, _, member = place_of(status)
  local is_its_own = is_live(is) and member == subject
  if is_its_own and refuses_end(status, id) then return true end
  redis.call('ZREM', delayed, subject)
  if is_its_own then end_lost(status, marker, id, 'its fields were deleted while it was delayed') end
  return true, true
end

-- The fields exist, but without a due time: the task is due now.
judges['fields-without-delay'] = function(mends)
  if redis.call('HEXISTS', parked, subject) == 0 then return false end
  if redis.call('ZSCORE', delayed, subject) then return false end
  if mends then redis.call('ZADD', delayed, now, subject) end
  return true, mends
end

-- The task can never run. It is made due now, so that its delivery buries it where an operator can see it.
judges['unreadable-fields'] = function(mends)
  local due = redis.call('ZSCORE', delayed, subject)
  local fields = redis.call('HGET', parked, subject)
  if not due or tonumber(due) <= now or not fields or parked_fields(fields) then return false end
  if mends then redis.call('ZADD', delayed, now, subject) end
  return true, mends
end

-- The key of a task that has ended or is not known any more.
judges['orphaned-key'] = function(mends)
  if first_task(marker) ~= id or redis.call('PTTL', marker) ~= -1 then return false end
  local is = place_of(status)
  if is_live(is) or redis.call('ZSCORE', delayed, 'new/' .. id) then return false end
  if mends then redis.call('PEXPIRE', marker, window_after(is or 'COMPLETED')) end
  return true, mends
end

-- Dead, but its status is that of a living or completed task. The time of enqueueing distinguishes it from
-- another task with its id.
judges['dead-but-alive'] = function()
  local letter = entry_of(dead)
  if not letter or (value_in(letter[2], 'tq-id') or subject) ~= id then return false end
  local known = redis.pcall('HMGET', status, 'status', 'enqueued_at')
  if not is_live(known[1]) and known[1] ~= 'COMPLETED' then return false end
  return known[2] and value_in(letter[2], 'tq-enqueued-at') == known[2]
end

-- The flow of a child, its index there, and its queue, if the flow still waits for the end of this child.
local function awaited()
  local index, flow = string.match(subject, '^(%d+) (.+)$')
  local known = redis.call('HMGET', flow, 'total', 'failed_as')
  local staged = redis.call('LLEN', flow .. ':children')
  if not known[1] or known[2] or tonumber(index) >= tonumber(known[1]) - staged then return nil end
  local noted = redis.call('HGET', flow .. ':results', index) or 'PENDING '
  local queue = string.match(noted, '^PENDING (%S*)')
  return queue and flow, index, queue
end

-- The child is in no place any more, and nobody noted an end.
judges['lost-child'] = function(mends)
  local flow, index, queue = awaited()
  if not flow or redis.call('EXISTS', status) == 1 then return false end
  mends = mends and not flows.refusal(flow)
  if mends then
    flows.join(flow, index, id, 'FAILED', { 'error', 'lost: its status was deleted' }, queue)
  end
  return true, mends
end

-- The child's end was not counted, or will not be, because its status does not name the flow.
judges['uncounted-child'] = function(mends)
  local flow, index, queue = awaited()
  local said = redis.pcall('HMGET', status, 'status', 'flow', 'result', 'error')
  if not flow or said.err or is_live(said[1]) and said[2] == subject then return false end
  mends = mends and not flows.refusal(flow)
  if mends and said[1] and not is_live(said[1]) then
    local changes = {}
    if said[3] then append(changes, 'result', said[3]) end
    if said[4] then append(changes, 'error', said[4]) end
    flows.join(flow, index, id, said[1], changes, queue)
    redis.call('HDEL', status, 'unfinished')
  elseif mends then
    redis.call('HSET', status, 'status', said[1] or 'PENDING', 'flow', subject)
  end
  return true, mends
end

-- Children are staged, and no member stands for the flow among the delayed tasks.
judges['unreleased-children'] = function(mends)
  local children, member = subject .. ':children', 'flow/' .. id
  if redis.call('PTTL', children) ~= -1 or redis.call('ZSCORE', delayed, member) then return false end
  if mends and redis.call('EXISTS', subject) == 0 then
    redis.call('DEL', children)
  elseif mends then
    redis.call('ZADD', delayed, now, member)
    redis.call('HSET', parked, member, cmsgpack.pack({ 'tq-joins', subject }))
  end
  return true, mends
end

-- All children have completed, and the task that joins the flow is nowhere.
judges['unjoined-flow'] = function(mends)
  local known = redis.call('HMGET', subject, 'left', 'failed_as', 'total')
  local is, entry, member = place_of(status)
  if not known[1] or known[2] or is ~= 'PENDING' or entry or member then return false end
  for index = 0, tonumber(known[1]) > 0 and known[3] - 1 or -1 do
    local noted = redis.call('HGET', subject .. ':results', index)
    if not noted or not string.find(noted, '^COMPLETED ') then return false end
  end
  mends = mends and not flows.refusal(subject)
  if mends then
    redis.call('HSET', subject, 'left', 0)
    flows.release(subject, flows.about(subject))
  end
  return true, mends
end

-- The status of the task that joins a flow is gone, or does not name the flow.
judges['flow-without-task'] = function(mends)
  local known = redis.call('HMGET', subject, 'left', 'failed_as')
  if not known[1] or known[2] or tonumber(known[1]) <= 0 then return false end
  if redis.pcall('HGET', status, 'joins') == subject then return false end
  if mends then
    set_status(status, 'status', 'PENDING', 'attempt', 1, 'enqueued_at', now, 'joins', subject)
  end
  return true, mends
end

-- The first delayed task that is due is not moved.
judges['stuck-delayed'] = function()
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  return first[1] == subject and tonumber(first[2]) < now - patience
end

-- The first abandoned entry is not taken over.
judges['stuck-claim'] = function()
  local first = redis.pcall('XPENDING', stream, group, 'IDLE', patience, '-', '+', 1)[1]
  return first and first[1] == subject
end

local so, mended = judges[suspicion](mends == '1')
return { so and 1 or 0, mended and 1 or 0 }
