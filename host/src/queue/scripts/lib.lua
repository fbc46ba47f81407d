-- The functions that scripts share; this file stands in front of every script.
--
-- A script names its keys and arguments in its head, behind KEYS and ARGV. The text in parentheses explains
-- them. A name with `...` stands for any number of words, and one with `[]` for a list that begins with its
-- length. The host makes variables of these names, and names them when it builds the call (queue/layout.rs).
--
-- The functions that scripts share know the names under KEYS and ARGV below. In a script that does not name
-- one of them, it is nil. These other names mean the same in every script:
--   history      group → the last entry that it was given before tqhost came (0-0: tqhost made the group)
--   adopted      another group → when an operator confirmed that its entries may be deleted
--   marker       the key that holds the idempotency key of a task (the stream: it has none)
--   holder       the status of the task that has this idempotency key (the stream: it is not known)
--   list         the list that the queue reads (the stream: none)
--   lease, enqueued_at    in ms
--   from, limit, bytes    the first id to look at ('-' at first), the most to look at, and the bytes after
--                which nothing further is looked at (one is in any case)
--   field, alias          the fields with a task's track (empty: all are in one) and its alias (empty: none)
--   fields       names and values
--   mends        1: what is wrong is mended
--
-- KEYS  stream, delayed (the delayed tasks by the time when they are due), parked (their fields), dead (the
--       dead letters)
-- ARGV  group, retention (how long, in ms, the queue keeps the status of an ended task), window (how long, in
--       ms, it keeps the idempotency key of an ended task; `A/B`: A if it completed, otherwise B)

-- The keys of this queue. `put` and `accept` take such a table, because an attempt may enqueue to another
-- queue.
local here

-- Redis's clock: the reply to TIME; the milliseconds since the Unix epoch; and these as text, because writing
-- a number as text is expensive.
local clock, now, now_text

-- The streams that are told of the ends of tasks, and what else an end needs (`take_told`):
--   COMPLETED, FAILED, CANCELLED    the stream that gets a task for each end of this kind (nil: none)
--   events, kept      the stream of events (nil: none), and about how many of them it keeps
--   fields            which fields of its own an ended task tells, as JSON (empty: all)
--   are_relayed       whether the first three are one stream, of tasks for queues in other slots
--   queue             the name of this queue
--   flows             the queues whose tasks may be in a flow with those of this queue, as JSON (empty: none)
--   by                in settle.lua, the consumer that settles
local told

-- The limits on which tasks of the queue run beside each other (`take_told`); empty in most queues:
--   are_limited       true where there are some
--   limit             how many tasks of one track may run (nil: there are no tracks)
--   owners, tracks, delayed, parked, statuses    keys, and the prefix of keys, for turns.lua
--   are_kept          true in a script that lets tasks keep their turns when it ends them
local turns

-- Why the next child that ends cannot be noted in its flow, if it may end all the same (`to_wait_for`).
local unjoined

-- The value of `history` for the group; nil before it is read (`is_foreign`).
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

-- Takes the words that stand last in a call that may end tasks (`Told` in script.rs):
--   keys: if somebody is told, the streams for completed, dead and cancelled tasks, and of events (this
--       stream in the place of one that is not there) · if there are limits, the keys of owners, tracks,
--       delayed and parked tasks, and of an operator's limits
--   arguments: if somebody is told, the names of the fields to tell, as those of a JSON object (empty: all) ·
--       if there are limits, how many tasks of one track may run (empty: no tracks), and the prefix of the
--       keys of statuses · how many events are kept (empty: nobody is told), behind `>` if the first keys are
--       of tasks for other slots, and then behind `+` if there are limits · the queue's name · the queues of
--       its flows
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

-- Calls a function. Returns its first result (nil: it has none), or the text of its error.
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

-- The fields of an entry of a stream, or nil if there is no such entry.
local function fields_in(key, entry)
  local found = redis.call('XRANGE', key, entry, entry)[1]
  return found and found[2]
end

local function exists(entry)
  return fields_in(stream, entry) ~= nil
end

-- Whether a text is an entry's id: two numbers of 64 bits. XRANGE raises an error for others.
local function is_entry_id(text)
  local ms, number = string.match(text, '^(%d+)%-(%d+)$')
  if not ms then return false end
  for _, part in ipairs({ ms, number }) do
    if #part > 20 or #part == 20 and part > '18446744073709551615' then return false end
  end
  return true
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

-- Acknowledges and deletes an entry. Returns its fields if the task of a cancelled task needs them.
local function drop(entry)
  local fields = told.CANCELLED and fields_in(stream, entry)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
  return fields or nil
end

-- Adds an entry of events. One that cannot be written is left out.
local function add_event(...)
  if told.events then redis.pcall('XADD', told.events, 'MAXLEN', '~', told.kept, '*', ...) end
end

-- Adds an event: a task has ended or has moved.
local function task_event(id, status, ...)
  add_event('id', id, 'status', status, ...)
end

-- How many more tasks may wait or run in this queue, if `most` may in all.
local function room(most)
  return tonumber(most) - redis.call('XLEN', stream) - redis.call('ZCARD', delayed)
end

-- How long (ms) an idempotency key is kept after its task has ended as COMPLETED, FAILED or CANCELLED.
local function window_after(how)
  local completed, others = string.match(window, '^(%d+)/(%d+)$')
  return completed and (how == 'COMPLETED' and completed or others) or window
end

-- Puts a task into the stream of a queue, or as `member` among its delayed tasks if it is due later. Returns
-- the name and the value of the field by which its status tells the place.
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

-- Deletes from a status these fields and those of an earlier end. The status does not expire any more.
local function forget_end(status, ...)
  redis.pcall('HDEL', status, 'finished_at', 'result', 'dead', 'duplicate_of', 'cancel', 'stops',
    'cancelled', 'produced', 'unfinished', ...)
  redis.call('PERSIST', status)
end

-- The id of the task that has an idempotency key, or nil. `own_stream` is that of the marker's queue, if that
-- is another one: as a marker it means that there is no key. A value of another type counts as no marker.
local function first_task(marker, own_stream)
  local found = marker ~= (own_stream or stream) and redis.pcall('GET', marker)
  return type(found) == 'string' and found or nil
end

-- Accepts a new task into a queue. `marker` is the key that is to hold its idempotency key (the stream of the
-- queue: it has none). If another task has the idempotency key, it keeps it, and the delivery of the new task
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
-- the flow. If its idempotency key belongs to a task that ended within the window, the new task is cancelled
-- as a duplicate at once, and the function returns the changes of its status; otherwise nil.
--
-- A duplicate never enters its queue, which may be another one than this script's. So its end is not one for
-- `end_task`, and nobody is told of it. If the task that has the key is alive, it may turn out to be lost;
-- begin.lua finds that out at the delivery of the new task.
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

-- Adds a dead letter to the stream of a job, all of which then lives for `lives` ms.
local function keep(kept, lives, fields)
  redis.call('XADD', kept, '*', unpack(fields))
  redis.call('PEXPIRE', kept, lives)
end

local function is_live(status)
  return status == 'PENDING' or status == 'PROCESSING'
end

-- Whether a host wrote an entry, and not a producer. The status of its task tells: it names this entry, and
-- begin.lua was not the first to name it. A status that names no place at all is of a much older host, and
-- counts, too. A task without a status counts if it joins a flow, because only hosts make those.
local function is_of_host(status, id, entry)
  local known = redis.pcall('HMGET', status, 'status', 'entry', 'parked_as', 'produced')
  if known.err then return false end
  local state, known_entry, member, produced = unpack(known)
  if not state then return redis.pcall('HEXISTS', key_of(status, id, 'flow'), 'left') == 1 end
  if not is_live(state) or produced == entry then return false end
  return known_entry == entry or not known_entry and not member
end

-- Removes from the fields of an entry the reserved ones that only hosts write, unless a host wrote the entry.
-- `status` is that of its task. The flow of a child stays, since a flow knows its children; and so does an
-- attempt that is no number, so that the delivery buries the task as malformed.
local function keep_trusted(fields, status, id, entry)
  local kept, by_host = 0, nil
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    local may_stay = string.sub(name, 1, 3) ~= 'tq-' or name == 'tq-id' or name == 'tq-key'
      or name == 'tq-delay-ms' or name == 'tq-flow' or name == 'tq-attempt' and not tonumber(value)
    if not may_stay and by_host == nil then by_host = is_of_host(status, id, entry) end
    if may_stay or by_host then
      fields[kept + 1], fields[kept + 2] = name, value
      kept = kept + 2
    end
  end
  for i = #fields, kept + 1, -1 do fields[i] = nil end
end

-- The mark that cancel.lua left because it could not end the task; the script that finds the mark ends it.
-- 'here': the run under this entry is to be stopped, or cancel.lua knew no entry. 'elsewhere': a run of this
-- id under another entry is to be stopped, and has not been yet. Nil: there is no mark.
local function mark_of(status, entry)
  local mark, stops = unpack(redis.pcall('HMGET', status, 'cancel', 'stops'))
  if mark ~= '1' then return nil end
  if not stops or stops == entry then return 'here' end
  return (exists(stops) or pending_of(stops)) and 'elsewhere' or nil
end

-- Whether the user may run a command with these arguments. Newer servers raise an error unless the command
-- has as many arguments as it demands, so more are added until there is an answer. The last try is for a
-- command that takes none.
local function is_allowed(command, ...)
  local args = { ... }
  for _ = 1, 6 do
    local went, answer = pcall(redis.acl_check_cmd, command, unpack(args))
    if went then return answer end
    append(args, '1')
  end
  return redis.acl_check_cmd(command)
end

-- Turns a list of names and values, as in a reply of XINFO, into a table by name.
local function named(list)
  local about = {}
  for i = 1, #list, 2 do about[list[i]] = list[i + 1] end
  return about
end

-- How long (ms) a flow is kept after its last task has died, so that a requeueing can heal it: 30 days. It is
-- not kept for as long as the dead letter, because the dead letter can be deleted without the flow.
local FAILED_FLOW_LIVES = 2592000000

-- The functions for flows (flows.lua) and for tracks (turns.lua).
local flows, tracks = {}, {}

-- Whether a task is held by the flow that it joins: it is in no other place before the flow releases it.
local function is_held(status, id)
  local state, entry, member, joins =
    unpack(redis.pcall('HMGET', status, 'status', 'entry', 'parked_as', 'joins'))
  if state ~= 'PENDING' or entry or member or not joins then return false end
  return redis.pcall('HEXISTS', key_of(status, id, 'flow'), 'left') == 1
end

-- Prepares the fields of an entry for a new entry. Adds what only the old entry's id told: the id of the task
-- and when it was enqueued (ms), which the function returns. A task whose producer chose its id still waits
-- for its first attempt, which `tq-attempt` and `tq-due-at` say, so that it may expire.
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
