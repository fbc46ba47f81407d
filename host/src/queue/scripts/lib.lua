-- The functions that scripts share; this file stands in front of every script.
--
-- A script that uses these names has them in these places:
-- KEYS  1 stream · 2 delayed · 3 parked · 4 dead letters
-- ARGV  1 group · 2 how long (ms) the queue keeps the status of an ended task · 3 and its idempotency key
--       (`A/B`: A that of a completed task, B that of another one)
local stream, group, retention, window = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

-- The streams that are told of ends: by outcome the one that gets a task for each end, and `events`, which
-- keeps about `kept` entries. Each is nil where there is none. `queue` is this queue's name, and `fields`
-- says which of its own fields a task tells.
local told = {}

-- The limits on which tasks of the queue run beside each other; empty in most queues. `are_limited` is true
-- where there are some; `limit` is how many tasks of one track may run (nil without tracks), and the rest are
-- the keys for turns.lua. A script that sets `are_kept` lets tasks keep their turns when it ends them.
local turns = {}

-- Takes what a script that may end tasks gets behind its own keys and arguments:
-- KEYS  the streams that are told of completed, dead and cancelled tasks, and the events (this stream: none)
--       · in a queue with such limits: owners, tracks, delayed, parked
-- ARGV  the names of the fields that are told, as the names of a JSON object (empty: all) · how many tasks of
--       one track may run (empty: no tracks) · the prefix of the keys of statuses · how many events are kept
--       (empty: nobody is told, and neither the names nor the first keys are given), with a plus in front in
--       a queue with such limits, whose keys and arguments are not given otherwise · the queue's name
--       · the queues whose tasks may be in a flow with those of this queue, as JSON (empty: none)
local function take_told()
  told.flows = table.remove(ARGV)
  told.queue = table.remove(ARGV)
  told.kept = table.remove(ARGV)
  if string.sub(told.kept, 1, 1) == '+' then
    told.kept = string.sub(told.kept, 2)
    turns.are_limited = true
    turns.statuses = table.remove(ARGV)
    turns.limit = tonumber(table.remove(ARGV))
    for _, what in ipairs({ 'parked', 'delayed', 'tracks', 'owners' }) do turns[what] = table.remove(KEYS) end
  end
  if told.kept == '' then return end
  told.fields = table.remove(ARGV)
  for _, what in ipairs({ 'events', 'CANCELLED', 'FAILED', 'COMPLETED' }) do
    local key = table.remove(KEYS)
    if key ~= stream then told[what] = key end
  end
end

-- Redis's clock, in milliseconds and as text: writing a number as text is expensive.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now_text = string.format('%.0f', now)

local function append(list, ...)
  for i = 1, select('#', ...) do list[#list + 1] = (select(i, ...)) end
end

-- The text of an error that pcall caught.
local function text_of(caught) return type(caught) == 'table' and caught.err or tostring(caught) end

-- The value of a field, or false.
local function value_in(fields, name)
  local value = false
  for i = 1, #fields, 2 do
    if fields[i] == name then value = tostring(fields[i + 1]) end
  end
  return value
end

-- Takes keys and their types in turn. Gives nil, or an error reply for the first key of another type.
local function wrong_type(key, kind, ...)
  if not key then return nil end
  local got = redis.call('TYPE', key).ok
  if got == 'none' or got == kind then return wrong_type(...) end
  return redis.error_reply('TQTYPE ' .. key .. ' holds a ' .. got .. ', not a ' .. kind)
end

-- Another key of a task, made of its id and the key of its status. No name of a key is taken from data: a
-- client with the rights to a status would choose what the host writes to.
local function key_of(status, id, what)
  return string.sub(status, 1, -#id - 7) .. ':' .. what .. ':' .. id
end

local function exists(entry)
  return #redis.call('XRANGE', stream, entry, entry) > 0
end

-- The record of a pending entry: { id, consumer, idle ms, deliveries }. Nil: there is none, or no group.
local function pending_of(entry)
  local found = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if found.err and not string.find(found.err, 'NOGROUP', 1, true) then error(found) end
  return found[1]
end

-- Whether `entry` is pending and belongs to `consumer`.
local function owned(entry, consumer)
  local pending = pending_of(entry)
  return pending and pending[2] == consumer
end

local function fields_of(entry)
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  return found and found[2]
end

-- Settles an entry, and gives its fields if somebody is told of them.
local function drop(entry)
  local fields = told.CANCELLED and fields_of(entry)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
  return fields or nil
end

-- Adds an entry of events. One that cannot be written is left out.
local function add_event(...)
  if told.events then redis.pcall('XADD', told.events, 'MAXLEN', '~', told.kept, '*', ...) end
end

-- Notes that a task has ended or has moved.
local function note(id, status, ...)
  add_event('id', id, 'status', status, ...)
end

-- How many more tasks may wait or run, if `most` may.
local function room(most)
  return tonumber(most) - redis.call('XLEN', stream) - redis.call('ZCARD', KEYS[2])
end

-- The keys of this queue; an attempt may enqueue to another one.
local here = { stream = stream, delayed = KEYS[2], parked = KEYS[3] }

-- How long (ms) the idempotency key of a task that ended like this is kept.
local function window_after(how)
  local completed, others = string.match(window, '^(%d+)/(%d+)$')
  return completed and (how == 'COMPLETED' and completed or others) or window
end

-- Puts a task into the stream of a queue, or among its delayed ones as `member` if it is due later. Gives the
-- field of its status that names the place, and its value.
local function put(queue, fields, due, member)
  if due <= now then return 'entry', redis.call('XADD', queue.stream, '*', unpack(fields)) end
  redis.call('ZADD', queue.delayed, due, member)
  redis.call('HSET', queue.parked, member, cmsgpack.pack(fields))
  return 'parked_as', member
end

-- Writes fields of a task's status. A key of another type in its place is replaced: the key is tqhost's.
local function set_status(key, ...)
  local reply = redis.pcall('HSET', key, ...)
  if type(reply) == 'table' and reply.err then
    redis.call('DEL', key)
    redis.call('HSET', key, ...)
  end
end

-- Takes away these fields of a status, what it says of an earlier end, and its time to live.
local function forget_end(status, ...)
  redis.pcall('HDEL', status, 'finished_at', 'result', 'dead', 'duplicate_of', 'cancel', 'stops',
    'cancelled', 'produced', 'unfinished', ...)
  redis.call('PERSIST', status)
end

-- The id of the task that has an idempotency key, or nil. `marker` is the stream of the queue (if it is not
-- this one: `other`) when there is no key. A value of another type counts as no marker.
local function first_task(marker, other)
  local found = marker ~= (other or stream) and redis.pcall('GET', marker)
  return type(found) == 'string' and found or nil
end

-- Accepts a new task into a queue. `marker` is the key that is to hold its idempotency key (the stream of the
-- queue: it has none). A key that another task has stays with that one, and the delivery of the new task
-- decides which of them runs.
local function accept(queue, status, id, delay, fields, marker)
  append(fields, 'tq-enqueued-at', now)
  if delay > 0 then append(fields, 'tq-due-at', now + delay) end
  set_status(status, 'status', 'PENDING', 'attempt', 1, 'enqueued_at', now, 'due_at', now + delay,
    'enqueued', '1', put(queue, fields, now + delay, 'new/' .. id))
  if marker ~= queue.stream and (first_task(marker, queue.stream) or id) == id then
    redis.call('SET', marker, id)
    redis.call('HSET', status, 'marker', marker)
  end
end

-- Enqueues a task that another task asked for: one of its outbox, a child of its flow, or the task that joins
-- the flow. If its key belongs to a task that ended within the window, it is cancelled as a duplicate at
-- once, and the function gives the changes of its status. It never enters its queue, which may be another one
-- than this script's, so its end is not one for `end_task`, and nobody is told of it. A living task with the
-- key may turn out to be lost, which begin.lua finds out at the delivery of the new one.
local function enqueue(new)
  local first = first_task(new.marker, new.stream)
  if not first or first == new.id or redis.call('PTTL', new.marker) < 0 then
    accept(new, new.status, new.id, tonumber(new.delay), new.fields, new.marker)
    return nil
  end
  local changes = { 'duplicate_of', first, 'error', 'duplicate of ' .. first }
  set_status(new.status, 'status', 'CANCELLED', 'finished_at', now_text, 'enqueued_at', now_text,
    unpack(changes))
  -- Without a retention, this deletes the status.
  redis.call('PEXPIRE', new.status, new.retention)
  return changes
end

local function is_live(status)
  return status == 'PENDING' or status == 'PROCESSING'
end

-- Whether a host wrote an entry, as the status of its task says: it names this entry, and begin.lua was not
-- the first to name it. The status of a much older host names no place at all. Somebody may have deleted the
-- status of a task that joins a flow, which only hosts make.
local function is_of_host(status, id, entry)
  local known = redis.pcall('HMGET', status, 'status', 'entry', 'parked_as', 'produced')
  if known.err then return false end
  if not known[1] then return redis.pcall('HEXISTS', key_of(status, id, 'flow'), 'left') == 1 end
  if not is_live(known[1]) or known[4] == entry then return false end
  return known[2] == entry or not known[2] and not known[3]
end

-- Takes from the fields of an entry the reserved ones that only hosts write, unless a host wrote this entry.
-- `status` is that of its task. The flow of a child stays, since a flow knows its children; and so does an
-- attempt that is no number, so that the delivery buries the task as malformed.
local function keep_trusted(fields, status, id, entry)
  local kept, is_known = 0, nil
  for i = 1, #fields, 2 do
    local name = fields[i]
    local is_trusted = string.sub(name, 1, 3) ~= 'tq-' or name == 'tq-id' or name == 'tq-key'
      or name == 'tq-delay-ms' or name == 'tq-flow' or name == 'tq-attempt' and not tonumber(fields[i + 1])
    if not is_trusted then
      if is_known == nil then is_known = is_of_host(status, id, entry) end
      is_trusted = is_known
    end
    if is_trusted then
      fields[kept + 1], fields[kept + 2] = name, fields[i + 1]
      kept = kept + 2
    end
  end
  for i = #fields, kept + 1, -1 do fields[i] = nil end
end

-- Whether cancel.lua marked the task because it could not end it: 'here' if the run under this entry is to be
-- stopped, or if no entry was known; 'elsewhere' while another run under its id is to be stopped; else nil.
-- The script that finds its mark ends the task.
local function mark_of(status, entry)
  local mark, stops = unpack(redis.pcall('HMGET', status, 'cancel', 'stops'))
  if mark ~= '1' then return nil end
  if not stops or stops == entry then return 'here' end
  return (exists(stops) or pending_of(stops)) and 'elsewhere' or nil
end

-- Whether bytes are UTF-8, as ids of tasks and names of fields have to be. turns.lua defines it.
local is_text

-- The most fields that a task may have (field.rs). Hosts refuse a task with more.
local MOST_FIELDS = 1000

-- Adds a task for the end of a task, with the fields that are told and have room in a task (field.rs). Its
-- trace goes on in the new task, below the span of the last attempt if hosts send spans. Fields that begin
-- with `end.` speak of an earlier end. If the stream cannot take it, the status of the ended task says so, if
-- it is kept. The last two are what the status said before.
local function tell(status, id, how, attempt, changes, fields, letter, last_error, enqueued_at)
  local reason = letter and value_in(letter, 'tq-reason') or value_in(changes, 'duplicate_of') and 'duplicate'
    or how == 'FAILED' and 'lost' or ''
  if told.fields ~= '' and not told.named then told.named = cjson.decode(told.fields) end
  local span = value_in(changes, 'traceparent') or value_in(letter or fields or {}, 'tq-span')
  local new, room, result = {}, 16777216 - 65536, value_in(changes, 'result') or ''
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
  if how == 'COMPLETED' then last_error = nil end
  enqueued_at = value_in(changes, 'enqueued_at') or enqueued_at
    or value_in(fields or {}, 'tq-enqueued-at') or string.match(id, '^(%d+)%-%d+$')
  append(new, 'end.id', id, 'end.queue', told.queue, 'end.status', how, 'end.reason', reason,
    'end.error', value_in(changes, 'error') or last_error or '', 'end.result', result,
    'end.attempts', attempt or '', 'end.enqueued_at', enqueued_at or '', 'end.finished_at', now_text)
  local added = redis.pcall('XADD', told[how], '*', unpack(new))
  if type(added) == 'table' and tonumber(retention) > 0 then
    redis.pcall('HSET', status, 'untold', added.err)
  end
end

-- Turns a list of names and values, as XINFO gives them, into a table by name.
local function named(list)
  local about = {}
  for i = 1, #list, 2 do about[list[i]] = list[i + 1] end
  return about
end

-- How long (ms) a flow is kept after its last task has died, so that a requeueing can heal it: 30 days. It is
-- not kept for as long as the dead letter, because whoever deletes that need not know of the flow.
local FAILED_FLOW_LIVES = 2592000000

-- The functions for flows, which flows.lua makes at their first use.
local flows

-- The functions for tracks, which turns.lua makes at their first use.
local tracks

-- Why a task cannot end now: it is a child of a flow that cannot note its end. An error reply, or nil. What
-- ends a child asks before its first write, so that no child ends without its flow.
local function join_refusal(status)
  local at = redis.pcall('HGET', status, 'flow')
  local flow = type(at) == 'string' and string.match(at, '^%d+ (.+)$')
  return flow and flows().refusal(flow) or nil
end

-- Whether a task is held by the flow that it joins: it is in no other place before the flow releases it.
local function is_held(status, id)
  local is, entry, member, joins =
    unpack(redis.pcall('HMGET', status, 'status', 'entry', 'parked_as', 'joins'))
  if is ~= 'PENDING' or entry or member or not joins then return false end
  return redis.pcall('HEXISTS', key_of(status, id, 'flow'), 'left') == 1
end

-- Adds to the fields of an entry that is to come again under another id what only its own id told, and gives
-- when it was enqueued (ms). A producer that gave a task its id may give it to another task, and a host would
-- give one only once; so such a task still waits for its first attempt, and may expire.
local function keep_origin(fields, id, entry)
  local has_id, enqueued_at = value_in(fields, 'tq-id'), value_in(fields, 'tq-enqueued-at')
  if not enqueued_at then
    enqueued_at = string.match(entry, '^%d+')
    append(fields, 'tq-enqueued-at', enqueued_at)
    if has_id and not value_in(fields, 'tq-attempt') then
      append(fields, 'tq-attempt', '1', 'tq-due-at', enqueued_at)
    end
  end
  if not has_id then append(fields, 'tq-id', id) end
  return enqueued_at
end

-- Why this client cannot note the end of the next child in its flow, if it ends all the same.
local unjoined

-- Takes why a task cannot end now, an error reply or nil. Returns it if the task has to wait: a key of
-- another type can be put right meanwhile. But a client that lacks the rights to a flow would never end the
-- child, so that is noted, and the child ends.
local function to_wait_for(bad)
  unjoined = bad and not string.find(bad.err, 'TQTYPE', 1, true) and bad.err
  return not unjoined and bad or nil
end

-- Does a part of an end that is for others than the task. Gives why it failed, or nil.
local function failure_of(work, ...)
  local went, failure = pcall(work, ...)
  if went then return nil end
  return type(failure) == 'table' and failure.err or tostring(failure)
end

-- Ends a task of this queue. No other function does, whatever the outcome and whichever script found it. A
-- duplicate that never enters its queue is cancelled by `enqueue`.
--
-- `marker` is the key that holds the task's idempotency key (the stream: it has none). `how` is COMPLETED,
-- FAILED or CANCELLED; `changes` are the names and values of the other fields of the status that change. The
-- rest may be missing: `source` is the task's entry while it exists, or the list of its fields (false: nobody
-- is told of this end); `letter` is the content of the dead letter; `is_new` is true for a task that can have
-- no status yet; `lives` is how long (ms) the idempotency key lives, if not as long as the queue keeps it;
-- `model` has a status that another new task got in the same call, if any did, and this task's own changes.
-- Gives 1, or 3 if something is left to do for the track or the flow: then the status says why
-- (`unfinished`), and the doctor does it.
--
-- The order is: the dead letter, the status and its retention, the records, the idempotency key, the track,
-- the flow, those who are told of the end.
local function end_task(status, marker, id, how, changes, source, letter, is_new, lives, model)
  local attempt, last_error, enqueued_at
  if source ~= false and (told[how] or told.events) then
    if type(source) == 'string' then
      id = id or source
      source = told[how] and fields_of(source)
    end
    attempt = value_in(changes, 'attempt')
    if not attempt then
      attempt, last_error, enqueued_at =
        unpack(redis.pcall('HMGET', status, 'attempt', 'error', 'enqueued_at'))
      attempt = attempt or ''
    end
  end
  local dead = letter and redis.call('XADD', KEYS[4], '*', unpack(letter))
  -- enqueue.lua knows a task by its id for at least a minute, so that a repeated call adds no second task.
  local enqueued, flow, joins, records
  if not is_new then
    enqueued, flow, joins, records =
      unpack(redis.pcall('HMGET', status, 'enqueued', 'flow', 'joins', 'attempts'))
    -- Somebody may have deleted the status of a task that joins a flow.
    joins = joins or value_in(changes, 'joins') or letter and value_in(letter, 'tq-joins')
  end
  if model and model.status and redis.pcall('COPY', model.status, status) == 1 then
    -- It expires with the one that it was copied from.
    redis.call('HSET', status, unpack(model.changes))
  elseif tonumber(retention) > 0 then
    if not is_new then
      redis.pcall('HDEL', status, 'due_at', 'parked_as', 'cancel', 'stops', 'deleted', 'alone',
        how == 'COMPLETED' and 'error' or 'cancel')
    end
    set_status(status, 'status', how, 'finished_at', now_text, unpack(changes))
    if dead then redis.call('HSET', status, 'dead', dead) end
    redis.call('PEXPIRE', status, enqueued == '1' and math.max(retention, 60000) or retention)
  elseif not is_new then
    redis.call('DEL', status)
    -- A cancel that is repeated finds nothing else (cancel.lua).
    local is_noted = how == 'CANCELLED' and not value_in(changes, 'duplicate_of')
    if is_noted then redis.call('HSET', status, 'cancelled', '1') end
    if enqueued == '1' then redis.call('HSET', status, 'enqueued', '1') end
    if is_noted or enqueued == '1' then redis.call('PEXPIRE', status, 60000) end
  end
  -- The records of failed attempts go with the status. Without a retention, this deletes them.
  if records then redis.pcall('PEXPIRE', key_of(status, id, 'attempts'), retention) end
  if marker ~= stream and first_task(marker) == id then
    redis.call('PEXPIRE', marker, lives or window_after(how))
  end
  -- The task has ended, so an error does not keep the rest from being done.
  local missing = turns.limit and not turns.are_kept and failure_of(tracks().free, id or source)
  local uncounted = flow and (unjoined or failure_of(flows().end_child, flow, id, how, changes))
  unjoined = nil
  if uncounted then
    -- The doctor reads the child's end from its status.
    set_status(status, 'status', how, 'finished_at', now_text, 'flow', flow, unpack(changes))
    redis.pcall('PEXPIRE', status, math.max(retention, FAILED_FLOW_LIVES))
  end
  missing = uncounted or missing
  if missing and redis.pcall('EXISTS', status) == 1 then
    redis.pcall('HSET', status, 'unfinished', missing)
  end
  if joins then flows().leave(key_of(status, id, 'flow'), dead) end
  if attempt ~= nil then
    if told[how] then tell(status, id, how, attempt, changes, source, letter, last_error, enqueued_at) end
    note(id, how, 'attempt', attempt or '')
  end
  return missing and 3 or 1
end

-- Whether the user lacks one of these rights: in each list a key, if there is one, and commands on it. To ask
-- leaves no line in Redis's own log.
local function lacks_any(needed)
  for _, one in ipairs(needed) do
    for i = 2, redis.acl_check_cmd and one[1] and #one or 0 do
      if not redis.acl_check_cmd(one[i], one[1]) then return true end
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
  local last = flow and flows().keys_of(flow) or {}
  return lacks_any({
    { tonumber(retention) == 0 and status, 'DEL' }, { turns.limit and turns.owners, 'HGET' },
    { joins, 'HDEL', 'PEXPIRE' }, { joins and joins .. ':results', 'PEXPIRE' },
    { flow, 'HGET', 'HMGET', 'HGETALL', 'HSET' }, { flow and flow .. ':results', 'TYPE', 'HGET', 'HSET' },
    { last.stream, 'TYPE', 'XADD' }, { last.delayed, 'TYPE' }, { last.parked, 'TYPE' }, { last.dead, 'TYPE' },
    { last.status, 'TYPE', 'HGET', 'HSET' }, { last.marker, 'GET', 'SET' },
  }) or turns.limit and tracks().turn_of(id) and lacks_any({
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
-- no task has done the work that the key stands for. False if that is not possible now.
local function end_lost(status, marker, id, why)
  if refuses_end(status, id) then return false end
  end_task(status, marker, id, 'FAILED', { 'error', 'lost: ' .. why }, nil, nil, false, 0)
  return true
end

-- Reads from a task's status where it is: the status, the entry, the member among the delayed tasks, the
-- consumer, and how long (a time in ms, or 0) its host may run it without its entry, which was deleted:
-- heartbeat.lua notes that. All but the last are nil when the key has another type.
local function place_of(status)
  local known = redis.pcall('HMGET', status, 'status', 'entry', 'parked_as', 'consumer', 'deleted')
  return known[1], known[2], known[3], known[4], tonumber(known[5]) or 0
end

-- Whether a task that has not ended is under this entry: it waits or runs there, or runs without the entry.
local function is_there(entry, kept_until)
  return exists(entry) or pending_of(entry) ~= nil or kept_until > now
end

-- Whether a task that has not ended is in one of the places that its status names.
local function has_place(entry, member, kept_until)
  return entry and is_there(entry, kept_until)
    or member and type(redis.pcall('ZSCORE', KEYS[2], member)) == 'string'
end

-- Ends a task whose entry was deleted, unless the task has ended, waits in another place, or still runs at
-- a consumer other than `consumer`. True when it was ended. A task that was never begun may have no status;
-- where the queue keeps no statuses, a task without one may have ended.
local function note_lost(status, marker, id, entry, consumer)
  local is, known_entry, _, runner, kept_until = place_of(status)
  -- The caller may have missed the entry before Redis came back with older data.
  if is == nil or exists(entry) then return false end
  if runner ~= consumer and kept_until > now then return false end
  if is and (known_entry ~= entry or not is_live(is)) then return false end
  if not is and tonumber(retention) == 0 then return false end
  return end_lost(status, marker, id, 'its entry was deleted from the stream')
end

-- Whether a status says that the id of a task belongs to another entry: it completed, exists, is delayed, or
-- is held by the flow that it joins.
local function is_elsewhere(status, entry, id)
  local is, known_entry, member, _, kept_until = place_of(status)
  if known_entry == entry then return false end
  if known_entry or member then
    return is == 'COMPLETED' or is_live(is) and has_place(known_entry, member, kept_until)
  end
  return is == 'COMPLETED' or is == 'PENDING' and is_held(status, id)
end

-- Whether the task `id`, which has an idempotency key, is in no place any more and will never run. If so, it
-- is ended, and its key is free. `holder` is the status of that task. A task whose place is not certain
-- counts as existing.
local function is_gone(holder, marker, id)
  if redis.call('PTTL', marker) ~= -1 then return false end
  local is, entry, member, _, kept_until = place_of(holder)
  if not entry or not is_live(is) or has_place(entry, member, kept_until) then return false end
  return end_lost(holder, marker, id, 'its entry was deleted from the stream')
end

-- Whether a consumer's name is that of a host: it ends in a process, 12 digits, and perhaps a number, but not
-- in a UUID. hosts.rs tells them in the same way.
local function is_host(name)
  local hex, named = string.rep('%x', 4), string.gsub(name, '%.%d+$', '')
  local uuid = table.concat({ hex .. hex, hex, hex, hex, hex .. hex .. hex }, '%-')
  return string.find(named, '%-%d+%-' .. hex .. hex .. hex .. '$') ~= nil
    and not string.find(named, '^' .. uuid .. '$') and not string.find(named, '%X' .. uuid .. '$')
end

-- Whether a consumer is that of another program, which served the group before tqhost came. `history` is the
-- key with group.lua's note.
local before_tqhost
local function is_foreign(history, consumer)
  if is_host(consumer) then return false end
  if before_tqhost == nil then before_tqhost = redis.pcall('HGET', history, group) end
  return type(before_tqhost) == 'string' and before_tqhost ~= '0-0'
end

-- The entry that the group was given last, or nil where there is no group.
local function last_delivered()
  for _, fields in ipairs(redis.pcall('XINFO', 'GROUPS', stream)) do
    local about = named(fields)
    if about['name'] == group then return about['last-delivered-id'] end
  end
end

-- Whether the entry id `a` comes after `b`. Each half may have 64 bits, more than a Lua number can hold, so
-- the halves are compared as text.
local function comes_after(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then a_seq, b_seq = a_ms, b_ms end
  if #a_seq ~= #b_seq then return #a_seq > #b_seq end
  return a_seq > b_seq
end

-- Whether the group has passed over an entry; `last` is the entry that the group was given last. Gives 1
-- when nothing will deliver the entry again, 2 when the group was done with it before tqhost came (it is
-- history), and 0 otherwise. `history` is the key with group.lua's note. Without a note no host has come yet.
local function passed_over(history, last, entry)
  if not last or comes_after(entry, last) or pending_of(entry) then return 0 end
  return comes_after(entry, redis.call('HGET', history, group) or last) and 1 or 2
end

-- A delayed task's fields as they were parked, or nil when they cannot be read.
local function parked_fields(packed)
  local read, fields = pcall(cmsgpack.unpack, packed)
  if not read or type(fields) ~= 'table' or #fields == 0 or #fields % 2 == 1 then return nil end
  for i = 1, #fields do
    if type(fields[i]) ~= 'string' and type(fields[i]) ~= 'number' then return nil end
  end
  return fields
end

local function size_of(fields)
  local size = 0
  for _, part in ipairs(fields) do size = size + #part end
  return size
end
