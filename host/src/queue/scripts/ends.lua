-- Ends the tasks of this queue, and tells others of it. This file stands behind lib.lua, in front of every
-- script.

-- Whether bytes are UTF-8, as ids of tasks and names of fields have to be. turns.lua defines it.
local is_text

-- The most fields that a task may have (field.rs). Hosts refuse a task with more.
local MOST_FIELDS = 1000

-- The most bytes of an ended task's result and own fields in the task that tells of its end: a task has
-- 16 MiB, and 64 KiB of these are for the rest.
local MOST_TOLD = 16777216 - 65536

-- Adds a task that tells of the end of a task, with its result, and those of its own fields that are told and
-- have room. `ended` is that of `end_task`, `fields` are those of the ended task, and `before` has what its
-- status said.
--
-- The trace goes on in the new task, below the span of the last attempt if hosts send spans. Fields that
-- begin with `end.` speak of an earlier end. If the stream cannot take the task, the status of the ended one
-- says so, if it is kept.
local function tell(ended, id, fields, before)
  local how, changes, letter = ended.how, ended.changes, ended.letter
  local reason = letter and value_in(letter, 'tq-reason') or value_in(changes, 'duplicate_of') and 'duplicate'
    or how == 'FAILED' and 'lost' or ''
  if told.fields ~= '' and not told.named then told.named = cjson.decode(told.fields) end
  local span = value_in(changes, 'traceparent') or value_in(letter or fields or {}, 'tq-span')
  local new, room, result = {}, MOST_TOLD, value_in(changes, 'result') or ''
  if #result > room then result = '' else room = room - #result end
  for i = 1, fields and #fields <= 7000 and #fields or 0, 2 do
    local name, size = fields[i], string.len(fields[i]) + string.len(fields[i + 1])
    local is_own = string.sub(name, 1, 3) ~= 'tq-' and string.sub(name, 1, 4) ~= 'end.'
    local is_told = not told.named or told.named[name]
    if name == 'traceparent' then is_told = not span end
    if is_own and is_told and size <= room and #new < 2 * MOST_FIELDS and is_text(name) then
      room = room - size
      append(new, name, fields[i + 1])
    end
  end
  if span then append(new, 'traceparent', span) end
  local message = value_in(changes, 'error') or how ~= 'COMPLETED' and before.error or ''
  local enqueued_at = value_in(changes, 'enqueued_at') or before.enqueued_at
    or value_in(fields or {}, 'tq-enqueued-at') or string.match(id, '^(%d+)%-%d+$') or ''
  append(new, 'end.id', id, 'end.queue', told.queue, 'end.status', how, 'end.reason', reason,
    'end.error', message, 'end.result', result, 'end.attempts', before.attempt or '',
    'end.enqueued_at', enqueued_at, 'end.finished_at', now_text)
  if told.are_relayed then
    -- The relay enqueues an id once, so each end of a task has an id of its own, whatever the queue.
    local own = redis.sha1hex(stream .. ' ' .. id .. ' ' .. how .. ' ' .. now_text)
    new = { 'by', told.by or '', 'on_end', how, 'tq-id', 'end-' .. own, unpack(new) }
  end
  local added = redis.pcall('XADD', told[how], '*', unpack(new))
  if type(added) == 'table' and tonumber(retention) > 0 then
    redis.pcall('HSET', ended.status, 'untold', added.err)
  end
end

-- Why a task cannot end now: it is a child of a flow that cannot note its end. An error reply, or nil. What
-- ends a child asks before its first write, so that no child ends without its flow.
local function join_refusal(status)
  local at = redis.pcall('HGET', status, 'flow')
  local flow = type(at) == 'string' and string.match(at, '^%d+ (.+)$')
  return flow and flows.refusal(flow) or nil
end

-- Decides whether a task that cannot end now has to wait. `bad` is the reason, an error reply or nil. A task
-- waits for a key of another type to be put right: then the function returns `bad`. But a client that lacks
-- the rights to a flow would never end the child, so the child ends, and `unjoined` keeps the reason.
local function to_wait_for(bad)
  unjoined = bad and not string.find(bad.err, 'TQTYPE', 1, true) and bad.err
  return not unjoined and bad or nil
end

-- Writes the status of a task that ends. `enqueued` is '1' if enqueue.lua has to know it for a while.
local function write_end(ended, buried, enqueued)
  local status, how, changes, model = ended.status, ended.how, ended.changes, ended.model
  if model and model.status and redis.pcall('COPY', model.status, status) == 1 then
    -- It expires with the one that it was copied from.
    redis.call('HSET', status, unpack(model.changes))
  elseif tonumber(retention) > 0 then
    if not ended.is_new then
      redis.pcall('HDEL', status, 'due_at', 'parked_as', 'cancel', 'stops', 'deleted', 'alone',
        how == 'COMPLETED' and 'error' or 'cancel')
    end
    set_status(status, 'status', how, 'finished_at', now_text, unpack(changes))
    if buried then redis.call('HSET', status, 'dead', buried) end
    redis.call('PEXPIRE', status, enqueued == '1' and math.max(retention, 60000) or retention)
  elseif not ended.is_new then
    redis.call('DEL', status)
    -- A cancel that is repeated finds nothing else (cancel.lua).
    local is_noted = how == 'CANCELLED' and not value_in(changes, 'duplicate_of')
    if is_noted then redis.call('HSET', status, 'cancelled', '1') end
    if enqueued == '1' then redis.call('HSET', status, 'enqueued', '1') end
    if is_noted or enqueued == '1' then redis.call('PEXPIRE', status, 60000) end
  end
end

-- Tells the track and the flow of a task that it has ended. An error of one of them does not stop the rest,
-- because the task has ended. Its status then has the error as `unfinished`, and the function returns it.
local function leave_others(ended, flow)
  local status, id, how, changes = ended.status, ended.id, ended.how, ended.changes
  -- Both functions return nothing, so a result of `try` is the text of an error.
  local unfinished = turns.limit and not turns.are_kept and try(tracks.free, id or ended.entry)
  local uncounted = flow and (unjoined or try(flows.end_child, flow, id, how, changes))
  unjoined = nil
  if uncounted then
    -- The doctor reads the child's end from its status.
    set_status(status, 'status', how, 'finished_at', now_text, 'flow', flow, unpack(changes))
    redis.pcall('PEXPIRE', status, math.max(retention, FAILED_FLOW_LIVES))
  end
  unfinished = uncounted or unfinished
  if unfinished and redis.pcall('EXISTS', status) == 1 then
    redis.pcall('HSET', status, 'unfinished', unfinished)
  end
  return unfinished
end

-- Ends a task of this queue. No other function does, whatever the outcome and whichever script found it. A
-- duplicate that never enters its queue is cancelled by `enqueue`.
--
-- `ended` has these fields:
--   status     the key of its status
--   marker     the key that holds the task's idempotency key (the stream: it has none)
--   id         of the task (false: it is that of the entry)
--   how        COMPLETED, FAILED or CANCELLED
--   changes    names and values of the other fields of the status that change
-- and may have these:
--   entry      of the task, if it exists
--   source     the fields of the task, if it has no entry
--   letter     the content of the dead letter
--   is_untold  true if nobody is told of this end
--   is_new     true if the task can have no status yet
--   lives      how long (ms) the idempotency key lives (nil: as long as the queue keeps it)
--   model      `status`, that of another new task which ended in this call (nil: none has yet), and
--              `changes`, in which this task's status differs from it
--
-- Returns 1, or 3 if something is left to do for the track or the flow, which the doctor does.
--
-- The order is: the dead letter, the status and its retention, the records, the idempotency key, the track,
-- the flow, the task for `on_end` and the event.
local function end_task(ended)
  local status, marker, how, changes = ended.status, ended.marker, ended.how, ended.changes
  local id, source, letter = ended.id, ended.source, ended.letter
  local is_told, before = not ended.is_untold and (told[how] or told.events), nil
  if is_told then
    id = id or ended.entry
    if ended.entry and told[how] then source = fields_in(stream, ended.entry) end
    before = { attempt = value_in(changes, 'attempt') }
    if not before.attempt then
      before.attempt, before.error, before.enqueued_at =
        unpack(redis.pcall('HMGET', status, 'attempt', 'error', 'enqueued_at'))
    end
  end
  local buried = letter and redis.call('XADD', dead, '*', unpack(letter))
  -- enqueue.lua knows a task by its id for at least a minute, so that a repeated call adds no second task.
  local enqueued, flow, joins, records
  if not ended.is_new then
    enqueued, flow, joins, records =
      unpack(redis.pcall('HMGET', status, 'enqueued', 'flow', 'joins', 'attempts'))
    -- Somebody may have deleted the status of a task that joins a flow.
    joins = joins or value_in(changes, 'joins') or letter and value_in(letter, 'tq-joins')
  end
  write_end(ended, buried, enqueued)
  -- The records of failed attempts go with the status. Without a retention, this deletes them.
  if records then redis.pcall('PEXPIRE', key_of(status, id, 'attempts'), retention) end
  if marker ~= stream and first_task(marker) == id then
    redis.call('PEXPIRE', marker, ended.lives or window_after(how))
  end
  local is_unfinished = leave_others(ended, flow)
  if joins then flows.leave(key_of(status, id, 'flow'), buried) end
  if is_told then
    if told[how] then tell(ended, id, source, before) end
    task_event(id, how, 'attempt', before.attempt or '')
  end
  return is_unfinished and 3 or 1
end

-- Whether the user lacks one of these rights. Each is a list of a key and commands on it; without a key it
-- counts for nothing. Redis logs commands that it denies, but not these questions.
local function lacks_any(needed)
  if not redis.acl_check_cmd then return false end
  for _, one in ipairs(needed) do
    for i = 2, one[1] and #one or 0 do
      if not is_allowed(one[i], one[1]) then return true end
    end
  end
  return false
end

-- Whether the user lacks a right that the end of a lost task needs beside those that each one needs: to
-- delete its status, to change the flow that it belongs to or joins, or to free its turn.
local function lacks_rights(status, id)
  local at, joins = unpack(redis.pcall('HMGET', status, 'flow', 'joins'))
  local flow = at and string.match(at, '^%d+ (.+)$')
  joins = joins and key_of(status, id, 'flow')
  -- The end of a lost child delivers the task that joins its flow.
  local last = flow and flows.keys_of(flow) or {}
  return lacks_any({
    { tonumber(retention) == 0 and status, 'DEL' }, { turns.limit and turns.owners, 'HGET' },
    { joins, 'HDEL', 'PEXPIRE' }, { joins and joins .. ':results', 'PEXPIRE' },
    { flow, 'HGET', 'HMGET', 'HGETALL', 'HSET' }, { flow and flow .. ':results', 'TYPE', 'HGET', 'HSET' },
    { last.stream, 'TYPE', 'XADD' }, { last.delayed, 'TYPE' }, { last.parked, 'TYPE' }, { last.dead, 'TYPE' },
    { last.status, 'TYPE', 'HGET', 'HSET' }, { last.marker, 'GET', 'SET' },
  }) or turns.limit and tracks.turn_of(id) and lacks_any({
    { turns.owners, 'HDEL', 'HSET' }, { turns.tracks, 'ZADD', 'ZREM', 'ZLEXCOUNT', 'ZRANGEBYLEX' },
    { turns.delayed, 'ZREM' }, { turns.parked, 'HGET', 'HDEL' }, { stream, 'XADD' },
  })
end

-- Whether a lost task cannot be ended now. A client may lack rights that only some ends need, and leaves
-- these to a host.
local function refuses_end(status, id)
  return lacks_rights(status, id) or join_refusal(status) ~= nil
end

-- Ends a task that can never run again, because its entry was deleted. Its idempotency key is free at once:
-- no task has done the work that the key stands for. Returns whether the task could be ended.
local function end_lost(status, marker, id, why)
  if refuses_end(status, id) then return false end
  end_task({
    status = status, marker = marker, id = id, how = 'FAILED', changes = { 'error', 'lost: ' .. why },
    lives = 0,
  })
  return true
end
