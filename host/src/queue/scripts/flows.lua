-- The functions for flows: children, and the task that joins them when all have completed. This file stands
-- behind places.lua, in front of every script.
--
-- No name of a key is taken from data. A flow is a key of a queue that the configuration names
-- (`told.flows`), and only hosts may write to it. So its own list of children tells which task is a child.

-- The most bytes of spans that a flow keeps for the links of its last task: 128 texts of 55 bytes, with a
-- space after each. The host takes as many (telemetry::attempt).
local MOST_SPANS = 128 * 56

-- The queues of the configuration whose tasks may be in a flow with those of this queue, with their keys.
local function partners()
  if not told.partners then
    told.partners = told.flows ~= '' and cjson.decode(told.flows) or {}
    for _, queue in ipairs(told.partners) do
      queue.delayed, queue.parked = queue.base .. ':delayed', queue.base .. ':parked'
    end
  end
  return told.partners
end

-- The queue whose keys are those of a stream, or nil.
function flows.partner(name)
  for _, queue in ipairs(partners()) do
    if queue.stream == name then return queue end
  end
end

-- Gives a task the keys of its queue, in place of those that were stored with it. The stored marker counts if
-- it is a key of this queue. The stored place of dead letters counts, because the queue may have another one
-- by now, and only hosts write to a flow.
function flows.with_keys(task, queue, id)
  task.stream, task.delayed, task.parked = queue.stream, queue.delayed, queue.parked
  task.dead, task.group, task.id = task.dead or queue.dead, queue.group, id
  task.status = queue.base .. ':task:' .. id
  local prefix = queue.base .. ':key:'
  if string.sub(task.marker or '', 1, #prefix) ~= prefix then task.marker = queue.stream end
  return task
end

-- The queue of the task that joins a flow, and the id of this task. Nil if no partner has such a flow.
local function home_of(flow)
  for _, queue in ipairs(partners()) do
    local prefix = queue.base .. ':flow:'
    if string.sub(flow, 1, #prefix) == prefix then return queue, string.sub(flow, #prefix + 1) end
  end
end

-- The keys of the task that joins a flow.
function flows.keys_of(flow)
  local queue, id = home_of(flow)
  if not queue then return {} end
  local known = redis.pcall('HMGET', flow, 'marker', 'dead')
  return flows.with_keys({ marker = known[1], dead = known[2] }, queue, id)
end

-- The stored fields of a flow, with the keys of the task that joins it. Empty if there is no such flow.
function flows.about(flow)
  local queue, id = home_of(flow)
  local known = queue and redis.pcall('HGETALL', flow)
  if not known or known.err or not known[1] then return {} end
  return flows.with_keys(named(known), queue, id)
end

-- The index and the flow of a child. `at` has both, from the child's status. Nil unless the flow knows the
-- child under this index.
function flows.of_child(at, id)
  local index, flow = string.match(at or '', '^(%d+) (.+)$')
  if not flow or not home_of(flow) then return nil end
  local noted = redis.pcall('HGET', flow .. ':results', index)
  -- A client may lack the right to the flow. The end of the child then says that the flow does not know it.
  if type(noted) == 'table' and not string.find(noted.err, 'WRONGTYPE', 1, true) then error(noted) end
  local is_known = type(noted) == 'string' and string.match(noted, '^%u+ (.+)$') == told.queue .. ' ' .. id
  if is_known then return index, flow end
end

-- Keeps the state of a flow for a while after the task that joins it has ended. `letter` is the dead letter
-- of that task.
function flows.leave(flow, letter)
  local lives = math.max(retention, letter and FAILED_FLOW_LIVES or 86400000)
  if letter and redis.pcall('HEXISTS', flow, 'left') == 1 then
    -- Its queue may have other dead letters by now than when the flow began.
    redis.call('HSET', flow, 'letter', letter, 'dead', dead)
  else
    redis.pcall('HDEL', flow, 'letter')
  end
  redis.call('PEXPIRE', flow, lives)
  redis.call('PEXPIRE', flow .. ':results', lives)
end

-- Why the end of a child cannot be noted in a flow, as an error reply: the flow is of no known queue, the
-- client lacks a right, or a key has another type. Otherwise nil.
function flows.refusal(flow)
  local queue, id = home_of(flow)
  if not queue then
    return redis.error_reply('TQFLOW ' .. string.gsub(string.sub(flow, 1, 200), '%c', '?') ..
      ' is no flow of a queue that this configuration has: a host that runs children needs the queue ' ..
      'that joins them, and the one that starts them')
  end
  local known = redis.pcall('HMGET', flow, 'left', 'dead')
  -- A client may lack the right to the flow, and leaves the end to a host.
  if known.err and not string.find(known.err, 'WRONGTYPE', 1, true) then return known end
  if known.err or not known[1] then return nil end
  local went, bad = pcall(wrong_type, queue.stream, 'stream', queue.delayed, 'zset', queue.parked, 'hash',
    known[2] or queue.dead, 'stream', queue.base .. ':task:' .. id, 'hash', flow .. ':results', 'hash')
  if went then return bad end
  return { err = text_of(bad) }
end

-- Enqueues the task that joins a flow, whose children have all completed. If the flow had failed before, the
-- task is in its queue because of that, or dead: the entry or the dead letter is deleted. If an operator has
-- taken the dead letter away, the task is not enqueued again.
function flows.release(flow, about)
  local failed, fence = about['failed_as'], nil
  if failed then
    if fields_in(about['stream'], failed) then
      redis.call('XACK', about['stream'], about['group'], failed)
      redis.call('XDEL', about['stream'], failed)
    else
      local at = about['letter'] or '0-0'
      local letter = fields_in(about['dead'], at)
      if not letter then return end
      redis.call('XDEL', about['dead'], at)
      fence = value_in(letter, 'tq-fence')
    end
    redis.call('HDEL', about['status'], 'error', 'finished_at', 'dead', 'entry')
    redis.call('HDEL', flow, 'failed_as', 'letter')
    redis.call('PERSIST', about['status'])
    redis.call('PERSIST', flow)
    redis.call('PERSIST', flow .. ':results')
  end
  about.fields = cmsgpack.unpack(about['fields'])
  -- The fences of its deliveries go on growing.
  if fence then append(about.fields, 'tq-fence', fence) end
  if about['spans'] then append(about.fields, 'tq-links', about['spans']) end
  if enqueue(about) then
    flows.leave(flow)
  else
    -- A queue that keeps no statuses deleted it with the burial. The end of the task must find the flow.
    redis.call('HSET', about['status'], 'joins', flow)
  end
end

-- Notes in a flow the end of a child, under the child's index. `queue` is the name of the child's queue. The
-- child that completes last releases the task that joins the flow. The first child that ends in another way
-- fails the flow: its task is delivered with the error, and the delivery buries the task.
function flows.join(flow, index, id, how, changes, queue)
  -- The rest of the flow may be megabytes, and only the end that releases or fails it needs that.
  local known = redis.pcall('HMGET', flow, 'left', 'failed_as', 'spans')
  if known.err and not string.find(known.err, 'WRONGTYPE', 1, true) then error(known) end
  if known.err or not known[1] then return end
  local failed_as, spans = known[2], known[3] or ''
  local results = flow .. ':results'
  local before = redis.call('HGET', results, index)
  if before and string.find(before, '^COMPLETED ') then return end
  redis.call('HSET', results, index, how .. ' ' .. queue .. ' ' .. id)
  if how == 'COMPLETED' then
    local result = value_in(changes, 'result')
    if result then redis.call('HSET', results, index .. ':value', result) end
    local started = value_in(changes, 'flows')
    if started then redis.call('HSET', results, index .. ':flows', started) end
    -- Hosts that send spans tell the child's span. A span that is not sampled is sent by no host.
    local span = value_in(changes, 'traceparent')
    if span and string.sub(span, -3) == '-01' and #spans < MOST_SPANS then
      redis.call('HSET', flow, 'spans', spans .. span .. ' ')
    end
    if redis.call('HINCRBY', flow, 'left', -1) == 0 then flows.release(flow, flows.about(flow)) end
  elseif not failed_as then
    local about = flows.about(flow)
    local fields = cmsgpack.unpack(about['fields'])
    append(fields, 'tq-flow-failed',
      'child ' .. id .. ': ' .. (value_in(changes, 'error') or string.lower(how)))
    accept(about, about['status'], about['id'], 0, fields, about['marker'])
    redis.call('HSET', flow, 'failed_as', redis.call('HGET', about['status'], 'entry'))
  end
end

-- Notes the end of a child in its flow. `at` is the child's index and the key of the flow, from its status.
function flows.end_child(at, id, how, changes)
  local index, flow = flows.of_child(at, id)
  if index then flows.join(flow, index, id, how, changes, told.queue) end
end
