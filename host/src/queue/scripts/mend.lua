-- Judges one suspicion of the doctor about a task, and mends what is wrong if asked to. `judges` has a
-- function for each suspicion. It returns whether the suspicion is true, and whether that was mended.
--
-- KEYS  stream, delayed, parked, dead, history, status, marker
-- ARGV  group, retention, window, suspicion, mends, subject (the entry, member or task id that it is about),
--       id (of the task), patience (the lease, ms; for a task that may be stuck: the ms after which it is)
-- Returns { 1 if the suspicion is true, 1 if that was mended }.
--
-- The script looks and writes at one moment, so a task that has moved on is left alone. Safe to run again.
begin_call()
take_told()
local judges = {}
patience = tonumber(patience)

-- The task is pending, but its entry was deleted. Its host may still end the attempt, so the entry is not
-- acknowledged before the lease ends, nor while the end of its task is refused.
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

-- The group has read the entry, and it is not pending: nothing will deliver it. It comes back as a new entry,
-- unless its task has ended under it.
judges['undeliverable'] = function(mends)
  local fields = fields_in(stream, subject)
  if not fields or passed_over(history, last_delivered(), subject) ~= 1 then return false end
  if not mends then return true end
  local state, known_entry = place_of(status)
  -- The status of a task whose id is that of its entry need not name the entry.
  if state and (known_entry or id) == subject and not is_live(state) then
    redis.call('XDEL', stream, subject)
    return true, true
  end
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
  if known_entry == subject or not state then set_status(status, 'status', 'PENDING', 'entry', new) end
  task_event(id, 'PENDING', 'attempt', value_in(fields, 'tq-attempt') or '1')
  return true, true
end

-- The task is delayed, but its fields were deleted. It stays delayed while its end is refused.
judges['delayed-without-fields'] = function(mends)
  if not redis.call('ZSCORE', delayed, subject) then return false end
  if redis.call('HEXISTS', parked, subject) == 1 then return false end
  if not mends then return true end
  local state, _, member = place_of(status)
  local is_its_own = is_live(state) and member == subject
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
  local state = place_of(status)
  if is_live(state) or redis.call('ZSCORE', delayed, 'new/' .. id) then return false end
  if mends then redis.call('PEXPIRE', marker, window_after(state or 'COMPLETED')) end
  return true, mends
end

-- The task is dead, but its status is that of a living or completed task. The time of enqueueing
-- distinguishes it from another task with its id.
judges['dead-but-alive'] = function()
  local letter = fields_in(dead, subject)
  if not letter or (value_in(letter, 'tq-id') or subject) ~= id then return false end
  local state, enqueued_at = unpack(redis.pcall('HMGET', status, 'status', 'enqueued_at'))
  if not is_live(state) and state ~= 'COMPLETED' then return false end
  return enqueued_at and value_in(letter, 'tq-enqueued-at') == enqueued_at
end

-- The flow of a child, its index there, and its queue, if the flow still waits for the end of this child.
-- Otherwise nil, also if the child is still staged.
local function awaited()
  local index, flow = string.match(subject, '^(%d+) (.+)$')
  local total, failed_as = unpack(redis.call('HMGET', flow, 'total', 'failed_as'))
  local staged = redis.call('LLEN', flow .. ':children')
  if not total or failed_as or tonumber(index) >= tonumber(total) - staged then return nil end
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
  local known = redis.pcall('HMGET', status, 'status', 'flow', 'result', 'error')
  if not flow or known.err then return false end
  local state, named_flow, result, message = unpack(known)
  if is_live(state) and named_flow == subject then return false end
  mends = mends and not flows.refusal(flow)
  if mends and state and not is_live(state) then
    local changes = {}
    if result then append(changes, 'result', result) end
    if message then append(changes, 'error', message) end
    flows.join(flow, index, id, state, changes, queue)
    redis.call('HDEL', status, 'unfinished')
  elseif mends then
    redis.call('HSET', status, 'status', state or 'PENDING', 'flow', subject)
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
  local left, failed_as, total = unpack(redis.call('HMGET', subject, 'left', 'failed_as', 'total'))
  local state, entry, member = place_of(status)
  if not left or failed_as or state ~= 'PENDING' or entry or member then return false end
  for index = 0, tonumber(left) > 0 and total - 1 or -1 do
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
  local left, failed_as = unpack(redis.call('HMGET', subject, 'left', 'failed_as'))
  if not left or failed_as or tonumber(left) <= 0 then return false end
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

local is_true, is_mended = judges[suspicion](mends == '1')
return { is_true and 1 or 0, is_mended and 1 or 0 }
