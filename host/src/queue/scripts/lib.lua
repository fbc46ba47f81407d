-- The functions that scripts share; this file stands in front of every script.
--
-- A script names its keys and arguments in its head, behind KEYS and ARGV. The text in parentheses explains
-- them. A name with `...` stands for any number of words, and one with `[]` for a list that begins with its
-- length. The host makes variables of these names, and names them when it builds the call (queue/layout.rs).
-- The first ones below are known to all functions that scripts share, and nil in a script without them. The
-- others mean the same in all scripts:
--   history      group → the last entry that it was given before tqhost came (0-0: tqhost made the group)
--   adopted      another group → when an operator confirmed that its entries may be deleted
--   marker       holds the idempotency key of a task (the stream: it has none)
--   holder       the status of the task that has this key (the stream: it is not known)
--   list         the list that the queue reads (the stream: none)
--   lease, enqueued_at    in ms
--   from, limit, bytes    the first id to look at ('-' at first), how many to look at, and the bytes beyond
--                which no more are looked at (at least one is)
--   field, alias          the fields with a task's track (empty: all are in one) and its alias (empty: none)
--   fields       names and values
--   mends        1: what is wrong is mended
--
-- KEYS  stream, delayed (the delayed tasks by the time when they are due), parked (their fields), dead (the
--       dead letters)
-- ARGV  group, retention (how long, in ms, the queue keeps the status of an ended task), window (and its
--       idempotency key; `A/B`: A that of a completed task, B that of another one)

-- The keys of this queue; an attempt may enqueue to another one.
local here

-- Redis's clock: the reply to TIME; the same in milliseconds; and that as text, because writing a number as
-- text is expensive.
local clock, now, now_text

-- The streams that are told of ends: by outcome the one that gets a task for each end, and `events`, which
-- keeps about `kept` entries. Each is nil where there is none. `queue` is this queue's name, `fields` says
-- which of its own fields a task tells, and `by` is the consumer whose attempts settle.lua settles.
local told

-- The limits on which tasks of the queue run beside each other; empty in most queues. `are_limited` is true
-- where there are some; `limit` is how many tasks of one track may run (nil without tracks), and the rest are
-- the keys for turns.lua. A script that sets `are_kept` lets tasks keep their turns when it ends them.
local turns

-- Why this client cannot note the end of the next child in its flow, if it ends all the same.
local unjoined

-- The note of the entry that the group was given last before tqhost came; nil before it is read.
local before_tqhost

-- In a cluster a call of several keys ends with a key that never exists: while a slot moves, Redis refuses to
-- begin such a call. The scripts do not know it.
local function take_freeze_key()
  local last = KEYS[#KEYS]
  if not last or string.sub(last, -3) ~= '}:-' then return end
  local tag = string.match(KEYS[1], '^[^{]*{([^}]+)}') or KEYS[1]
  if string.match(last, '^tq:{(.*)}:%-$') == tag then table.remove(KEYS) end
end

-- Begins a call. The functions of a library share the variables above, which still have the values of the
-- call before.
local function begin_call()
  take_freeze_key()
  here = { stream = stream, delayed = delayed, parked = parked }
  clock = redis.call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  now_text = string.format('%.0f', now)
  told, turns, unjoined, before_tqhost = {}, {}, nil, nil
end

-- How many tasks of one track may run, where an operator may have set a lower limit for a time. A value that
-- cannot be read limits nothing.
local function lowered(limit, limits)
  local text = redis.pcall('GET', limits)
  local is_read, set = pcall(cjson.decode, type(text) == 'string' and text or '{}')
  local most = is_read and type(set) == 'table' and tonumber(set.per_key)
  return most and most >= 1 and math.min(limit, math.floor(most)) or limit
end

-- Takes what a script that may end tasks gets behind its own keys and arguments:
-- KEYS  the streams that are told of completed, dead and cancelled tasks, and the events (this stream: none)
--       · in a queue with such limits: owners, tracks, delayed, parked, and the limits of an operator
-- ARGV  the names of the fields that are told, as the names of a JSON object (empty: all) · how many tasks of
--       one track may run (empty: no tracks) · the prefix of the keys of statuses · how many events are kept
--       (empty: nobody is told, and neither the names nor the first keys are given), with a plus in front in
--       a queue with such limits, whose keys and arguments are not given otherwise, and with `>` in front of
--       all if the first keys are that of tasks for other slots · the queue's name · the queues whose tasks
--       may be in a flow with those of this queue, as JSON (empty: none)
local function take_told()
  told.flows = table.remove(ARGV)
  told.queue = table.remove(ARGV)
  told.kept = table.remove(ARGV)
  told.are_relayed = string.sub(told.kept, 1, 1) == '>'
  if told.are_relayed then told.kept = string.sub(told.kept, 2) end
  if string.sub(told.kept, 1, 1) == '+' then
    told.kept = string.sub(told.kept, 2)
    turns.are_limited = true
    turns.statuses = table.remove(ARGV)
    turns.limit = tonumber(table.remove(ARGV))
    local limits = table.remove(KEYS)
    if turns.limit and turns.limit > 1 then turns.limit = lowered(turns.limit, limits) end
    for _, what in ipairs({ 'parked', 'delayed', 'tracks', 'owners' }) do turns[what] = table.remove(KEYS) end
  end
  if told.kept == '' then return end
  told.fields = table.remove(ARGV)
  for _, what in ipairs({ 'events', 'CANCELLED', 'FAILED', 'COMPLETED' }) do
    local key = table.remove(KEYS)
    if key ~= stream then told[what] = key end
  end
end

local function append(list, ...)
  for i = 1, select('#', ...) do list[#list + 1] = (select(i, ...)) end
end

-- The text of an error that pcall caught.
local function text_of(caught) return type(caught) == 'table' and caught.err or tostring(caught) end

-- Calls a function. Returns what it returns, or the text of its error.
local function try(work, ...)
  local went, result = pcall(work, ...)
  if went then return result end
  return text_of(result)
end

-- The value of a field, or false.
local function value_in(fields, name)
  local value = false
  for i = 1, #fields, 2 do
    if fields[i] == name then value = tostring(fields[i + 1]) end
  end
  return value
end

-- Takes keys and their types in turn. Returns nil, or an error reply for the first key of another type.
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
  return tonumber(most) - redis.call('XLEN', stream) - redis.call('ZCARD', delayed)
end

-- How long (ms) the idempotency key of a task that ended like this is kept.
local function window_after(how)
  local completed, others = string.match(window, '^(%d+)/(%d+)$')
  return completed and (how == 'COMPLETED' and completed or others) or window
end

-- Puts a task into the stream of a queue, or among its delayed ones as `member` if it is due later. Returns
-- the field of its status that names the place, and its value.
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

-- Keeps the fields of a dead letter for a while.
local function keep(kept, lives, fields)
  redis.call('XADD', kept, '*', unpack(fields))
  redis.call('PEXPIRE', kept, lives)
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

-- Whether the user may run a command with these arguments. Newer servers answer only if there are as many as
-- the command demands, and raise an error otherwise; so this adds arguments until there is an answer. The
-- last try is for a command that takes none.
local function is_allowed(command, ...)
  local args = { ... }
  for _ = 1, 6 do
    local went, answer = pcall(redis.acl_check_cmd, command, unpack(args))
    if went then return answer end
    append(args, '1')
  end
  return redis.acl_check_cmd(command)
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

-- The functions for flows (flows.lua) and for tracks (turns.lua).
local flows, tracks = {}, {}

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
