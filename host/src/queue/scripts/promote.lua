-- Moves delayed tasks that are due back into the stream, and lists those that are due next. An operator's
-- call moves tasks before they are due.
--
-- KEYS  stream, delayed, parked; each member: status (of its task; the stream: not known)
-- ARGV  group, retention, window, most (how many to list; `now`: none, and the members are moved although
--       they are not due); each member: member (to be moved)
-- Returns how many were moved, how many were lost (members without fields), the ms until the next one is due
--   (-1: none; 0: some are due already), a list of those that are due (member, id of its task or ''), and a
--   list of those that cannot be moved (member, text of an error). A member that is not due any more stays
--   where it is, so the script is safe to run again.
--
-- A held task (turns.lua) is not due before its turn comes. Fields that cannot be read would block everything
-- behind them. They go into the stream as the value of one field, with an invalid attempt, so that their
-- delivery buries them as malformed.
begin_call()
take_told()
local bad = wrong_type(stream, 'stream')
if bad then return bad end
local moved, lost, broken = 0, 0, {}
local is_early = most == 'now'
-- After how many ms a member that cannot be moved is tried again.
local PUT_OFF = 10000

-- The most children that one call enqueues for all flows together, and about how many bytes of children it
-- may still enqueue. Another call goes on with the rest.
local STEP, bytes_left = 100, 1048576
local flows_due = 0
each_member(function()
  if string.find(member, '^flow/') then flows_due = flows_due + 1 end
end)

-- Enqueues children of a flow, as far as their queues have room. `member` stands for the flow among the
-- delayed tasks until all are enqueued, and names the id of the task that joins the flow. A flow that had its
-- share goes behind all others that are due, so that nothing waits for all children of a flow.
local function release_children()
  local flow = string.gsub(delayed, ':delayed$', ':flow:') .. string.sub(member, 6)
  local children = flow .. ':children'
  -- A flow is deleted when the task that joins it is cancelled.
  if redis.call('EXISTS', flow) == 0 then redis.call('DEL', children) end
  local refusal = flows.refusal(flow)
  local released = 0
  for _ = 1, math.max(1, math.floor(STEP / flows_due)) do
    if bytes_left <= 0 then break end
    local packed = redis.call('LINDEX', children, 0)
    if not packed then
      redis.call('ZREM', delayed, member)
      redis.call('HDEL', parked, member)
      return
    end
    local child = cmsgpack.unpack(packed)
    local queue = flows.partner(child.stream)
    if queue then flows.with_keys(child, queue, child.id) end
    -- A queue that is not configured any more, or whose keys have another type, takes no tasks, and holds up
    -- no others. An obstacle is true or an error reply.
    local obstacle = refusal or not queue
      or wrong_type(child.stream, 'stream', child.delayed, 'zset', child.parked, 'hash')
    -- Tasks that wait for their flows are among the delayed ones of their queue, so a queue could wait for
    -- itself: one with an empty stream takes a child in any case.
    if not obstacle then
      local queued = redis.call('XLEN', child.stream)
      obstacle = queued > 0 and queued + redis.call('ZCARD', child.delayed) >= tonumber(child.most)
    end
    if obstacle then
      if obstacle ~= true then append(broken, member, obstacle.err) end
      redis.call('ZADD', delayed, now + 1000, member)
      return
    end
    local index = string.match(value_in(child.fields, 'tq-flow'), '^%d+')
    local duplicate = enqueue(child)
    if duplicate then
      flows.join(flow, index, child.id, 'CANCELLED', duplicate, child.queue)
    else
      redis.call('HSET', child.status, 'flow', index .. ' ' .. flow)
      redis.call('HSET', flow .. ':results', index, 'PENDING ' .. child.queue .. ' ' .. child.id)
      moved = moved + 1
    end
    redis.call('LPOP', children)
    released, bytes_left = released + 1, bytes_left - #packed
  end
  if released > 0 then redis.call('ZADD', delayed, now, member) end
end

-- Writes into the status of a task that its entry is no longer delayed but in the stream.
local function note_entry(fields, entry)
  local state, _, parked_as = place_of(status)
  if state == 'PENDING' and parked_as == member then
    redis.call('HSET', status, 'entry', entry)
    redis.call('HDEL', status, 'parked_as')
    if is_early then redis.call('HSET', status, 'due_at', now_text) end
  elseif not state and status ~= stream and value_in(fields, 'tq-attempt') then
    -- Somebody deleted its status. Without one, the attempts that it had would not count any more.
    set_status(status, 'status', 'PENDING', 'attempt', value_in(fields, 'tq-attempt'), 'entry', entry)
  end
end

local function move()
  local due = redis.call('ZSCORE', delayed, member)
  local is_due = due and tonumber(due) <= now or due == HELD and not turns.limit
  if not is_due and not (is_early and due and due ~= HELD) then return end
  local packed = redis.call('HGET', parked, member)
  if packed then
    local fields = parked_fields(packed)
    if fields and string.find(member, '^flow/') then return release_children() end
    fields = fields or { 'member', member, 'unreadable', packed, 'tq-attempt', 'unreadable' }
    for i = 1, is_early and #fields or 0, 2 do
      if fields[i] == 'tq-due-at' and (tonumber(fields[i + 1]) or 0) > now then fields[i + 1] = now_text end
    end
    local entry = redis.call('XADD', stream, '*', unpack(fields))
    redis.call('HDEL', parked, member)
    note_entry(fields, entry)
    local attempt = value_in(fields, 'tq-attempt') or '1'
    task_event(value_in(fields, 'tq-id') or entry, 'PENDING', 'attempt', attempt)
    moved = moved + 1
  else
    lost = lost + 1
  end
  redis.call('ZREM', delayed, member)
end

if is_early then
  each_member(move)
  return { moved, lost, -1, {}, {} }
end
each_member(function()
  local went, caught = pcall(move)
  if not went then
    -- Without the right to add to the stream, nothing can be moved, and no task is put off.
    if lacks_any({ { stream, 'XADD' } }) then error(caught) end
    append(broken, member, text_of(caught))
    redis.call('ZADD', delayed, 'XX', now + PUT_OFF, member)
  end
end)

-- Lists the delayed tasks between two due times, up to about 1 MiB of fields.
local due, size = {}, 0
local function list_due(from, to)
  for _, found in ipairs(redis.call('ZRANGEBYSCORE', delayed, from, to, 'LIMIT', 0, tonumber(most))) do
    if size > 1048576 then break end
    local packed = redis.call('HGET', parked, found) or ''
    size = size + #packed
    append(due, found, value_in(parked_fields(packed) or {}, 'tq-id') or '')
  end
end
list_due('-inf', now)
local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
-- A queue that has no tracks any more holds no task: those that it held are due once all others have gone.
if first == HELD and not turns.limit then
  list_due(HELD, HELD)
  first = now_text
end
local has_next = first and first ~= HELD
return { moved, lost, has_next and math.max(0, math.ceil(first - now)) or -1, due, broken }
