-- Moves delayed tasks that are due back into the stream, and lists those that are due next. An operator's
-- call moves a task before it is due: it is due now.
--
-- KEYS  1 stream · 2 delayed · 3 parked · then for each member to be moved: status of its task (the stream:
--       not known)
-- ARGV  1 how many to list at most (`now`: none, and the members are moved although they are not due) · then
--       the members to be moved
-- Gives moved, lost (members without fields), ms until the next one is due (-1: none; 0: some are due
--   already), a list of those that are due: member, id of its task or '', and a list of those that cannot be
--   moved: member, the text of an error. A member that is not due any more stays where it is, so the script
--   is safe to run again.
--
-- A held task (turns.lua) is not due before its turn comes.
--
-- Fields that cannot be read would block everything behind them. They go into the stream as the value of one
-- field, with an invalid attempt, so that their delivery buries them as malformed.
begin_call()
take_told()
local bad = wrong_type(stream, 'stream')
if bad then return bad end
local moved, lost, broken = 0, 0, {}
local is_early = ARGV[1] == 'now'
-- How long (ms) a member that cannot be moved lets those behind it go first.
local PUT_OFF = 10000

-- The children that one call enqueues for all flows together, and about how many bytes they may have. Another
-- call goes on with the rest.
local STEP, bytes_left = 100, 1048576
local flows_due = 0
for i = 2, #ARGV do
  if string.find(ARGV[i], '^flow/') then flows_due = flows_due + 1 end
end

-- Enqueues children of a flow, as far as their queues have room. `member` stands for the flow among the
-- delayed tasks until all are enqueued. A flow that had its share goes behind all others that are due, so
-- that nothing waits for all children of a flow. A flow is known by the id of the task that joins it.
local function release_children(member)
  local flow = string.gsub(KEYS[2], ':delayed$', ':flow:') .. string.sub(member, 6)
  local children = flow .. ':children'
  -- Whoever cancels the task that joins a flow deletes the flow.
  if redis.call('EXISTS', flow) == 0 then redis.call('DEL', children) end
  local is_broken = flows.refusal(flow)
  local released = 0
  for _ = 1, math.max(1, math.floor(STEP / flows_due)) do
    if bytes_left <= 0 then break end
    local packed = redis.call('LINDEX', children, 0)
    if not packed then
      redis.call('ZREM', KEYS[2], member)
      redis.call('HDEL', KEYS[3], member)
      return
    end
    local child = cmsgpack.unpack(packed)
    local queue = flows.partner(child.stream)
    if queue then flows.with_keys(child, queue, child.id) end
    -- A queue that is not configured any more, or whose keys have another type, takes no tasks, and holds up
    -- no others. Tasks that wait for their flows are among the delayed ones of their queue, so a queue could
    -- wait for itself: one with an empty stream takes a child in any case.
    local is_full = is_broken or not queue
      or wrong_type(child.stream, 'stream', child.delayed, 'zset', child.parked, 'hash')
    if not is_full then
      local queued = redis.call('XLEN', child.stream)
      is_full = queued > 0 and queued + redis.call('ZCARD', child.delayed) >= tonumber(child.most)
    end
    if is_full then
      if is_full ~= true then append(broken, member, is_full.err) end
      redis.call('ZADD', KEYS[2], now + 1000, member)
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
  if released > 0 then redis.call('ZADD', KEYS[2], now, member) end
end

local function move(member, status)
  local due = redis.call('ZSCORE', KEYS[2], member)
  local is_due = due and tonumber(due) <= now or due == HELD and not turns.limit
  if not is_due and not (is_early and due and due ~= HELD) then return end
  local packed = redis.call('HGET', KEYS[3], member)
  if packed then
    local fields = parked_fields(packed)
    if fields and string.find(member, '^flow/') then return release_children(member) end
    fields = fields
      or { 'member', member, 'unreadable', packed, 'tq-attempt', 'unreadable' }
    for i = 1, is_early and #fields or 0, 2 do
      if fields[i] == 'tq-due-at' and (tonumber(fields[i + 1]) or 0) > now then fields[i + 1] = now_text end
    end
    local entry = redis.call('XADD', stream, '*', unpack(fields))
    redis.call('HDEL', KEYS[3], member)
    -- From now on its status names its entry, so that a cancellation finds it.
    local is, _, parked_as = place_of(status)
    if is == 'PENDING' and parked_as == member then
      redis.call('HSET', status, 'entry', entry)
      redis.call('HDEL', status, 'parked_as')
      if is_early then redis.call('HSET', status, 'due_at', now_text) end
    elseif not is and status ~= stream and value_in(fields, 'tq-attempt') then
      -- Somebody deleted its status. Without one, the attempts that it had would not count any more.
      set_status(status, 'status', 'PENDING', 'attempt', value_in(fields, 'tq-attempt'), 'entry', entry)
    end
    note(value_in(fields, 'tq-id') or entry, 'PENDING', 'attempt', value_in(fields, 'tq-attempt') or '1')
    moved = moved + 1
  else
    lost = lost + 1
  end
  redis.call('ZREM', KEYS[2], member)
end

if is_early then
  for i = 2, #ARGV do move(ARGV[i], KEYS[i + 2]) end
  return { moved, lost, -1, {}, {} }
end
for i = 2, #ARGV do
  local went, caught = pcall(move, ARGV[i], KEYS[i + 2])
  if not went then
    -- Without the right to add to the stream, nothing can be moved, and no task is put off.
    if lacks_any({ { stream, 'XADD' } }) then error(caught) end
    append(broken, ARGV[i], text_of(caught))
    redis.call('ZADD', KEYS[2], 'XX', now + PUT_OFF, ARGV[i])
  end
end

-- About 1 MiB of fields at a time, for any number of members.
local due, size = {}, 0
local function list(from, to)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], from, to, 'LIMIT', 0, tonumber(ARGV[1]))) do
    if size > 1048576 then break end
    local packed = redis.call('HGET', KEYS[3], member) or ''
    size = size + #packed
    append(due, member, value_in(parked_fields(packed) or {}, 'tq-id') or '')
  end
end
list('-inf', now)
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
-- A queue that has no tracks any more holds no task: those that it held are due once all others have gone.
if first == HELD and not turns.limit then
  list(HELD, HELD)
  first = now_text
end
local is_held = not first or first == HELD
return { moved, lost, is_held and -1 or math.max(0, math.ceil(first - now)), due, broken }
