-- Gives tasks back to a consumer that knows nothing of tqhost, without the fields that begin with tq-. Each
-- becomes a new entry of the stream, or the item of the list that is read next.
--
-- KEYS  stream, delayed, parked, owners, tracks, list
-- ARGV  group, which (entries of the stream: `pending` ones; `unread` ones whose tasks do not have their
--       turn; `all` of both), early (1: also tasks that their producer delayed), lease (ms; an entry that is
--       pending under a lease that lasts may still run, and is left; 0: the hosts have ended), statuses (the
--       prefix of their keys), only_looks (1: changes nothing), tasks... (entries of the stream, or members
--       of the delayed tasks)
-- Returns how many are given back, how many are left, the latest time (ms) at which one of those that their
--   producer delayed is due, and how many there are of each of KINDS.
--
-- Safe to run again: each task goes from one place to the other in this step. A task that has its turn loses
-- it, and no held task gets it, because those are given back, too.
begin_call()
list = list ~= stream and list
local bad = wrong_type(stream, 'stream', delayed, 'zset', parked, 'hash', owners, 'hash', tracks, 'zset')
  or list and wrong_type(list, 'list')
if bad then return bad end
lease, only_looks = tonumber(lease), only_looks == '1'
local last = last_delivered() or '0-0'

-- The kinds of tasks that the reply counts, in its order:
--   waiting, running, delayed, held    as everywhere
--   timed       its producer delayed it, and it is not due yet
--   flow        it belongs to a flow that has not ended
--   unfit       its content cannot be given
--   elsewhere   another consumer has it
--   ended       it was cancelled, or a task with its id completed
-- Two kinds are not counted: `leased` (it may still run), and `gone` (its pending entry was deleted).
local KINDS = {
  'waiting', 'running', 'delayed', 'held', 'timed', 'flow', 'unfit', 'elsewhere', 'ended',
}
local is_given = { waiting = true, running = true, delayed = true, held = true, timed = early == '1' }
-- The longest delay (ms) of a task, as the host has it (`codec.rs`).
local LONGEST_DELAY = 31536000000
local count, done, left, latest = {}, 0, 0, 0

-- The fields that are given. Nil if there are none or too many, or if they do not fit into an item of a list:
-- an item is the value of `data`, and has no place for a trace.
local function content_of(fields)
  local own = {}
  for i = 1, #fields, 2 do
    local is_lost = string.sub(fields[i], 1, 3) == 'tq-' or list and fields[i] == 'traceparent'
    if not is_lost then append(own, fields[i], fields[i + 1]) end
  end
  local fits = #own > 0 and #own <= 7000
  if list then fits = #own == 2 and own[1] == 'data' end
  return fits and own or nil
end

-- The kind of a task that has these fields and is due at `due`: it is `kind` unless a check says otherwise.
local function kind_of(fields, kind, due)
  if value_in(fields, 'tq-joins') or value_in(fields, 'tq-flow') then return 'flow' end
  if not content_of(fields) then return 'unfit' end
  if due <= now then return kind end
  latest = math.max(latest, math.min(due, now + LONGEST_DELAY))
  return 'timed'
end

-- The kind of the task of an entry, or nil if nothing is to be done with the entry.
local function kind_of_entry(entry, fields, id)
  local pending = pending_of(entry)
  if pending and not is_host(pending[2]) then return 'elsewhere' end
  if pending and pending[3] < lease then return 'leased' end
  if not fields then return pending and 'gone' end
  -- An entry that was read and is not pending was done with before tqhost came.
  if not pending and (which == 'pending' or not comes_after(entry, last)) then return nil end
  if which == 'unread' and (pending or redis.call('HEXISTS', owners, id) == 1) then return nil end
  local status = statuses .. id
  if place_of(status) == 'COMPLETED' or mark_of(status, entry) == 'here' then return 'ended' end
  -- The producer's delay counts from the enqueueing, and an entry has it until a host has read it.
  local delay = tonumber(value_in(fields, 'tq-delay-ms') or 0) or 0
  local begins = tonumber(value_in(fields, 'tq-enqueued-at') or string.match(entry, '^%d+')) or now
  local due = delay > 0 and begins + math.min(delay, LONGEST_DELAY) or 0
  return kind_of(fields, pending and 'running' or 'waiting', due)
end

local function kind_of_delayed(fields, score)
  if not fields then return 'unfit' end
  if tonumber(score) == tonumber(HELD) then return kind_of(fields, 'held', 0) end
  -- A task says when it is due only if its producer delayed it, and only until it runs. An attempt that is
  -- not charged leaves it at its first attempt.
  return kind_of(fields, 'delayed', tonumber(value_in(fields, 'tq-due-at') or 0) or 0)
end

local function give(own)
  if list then
    redis.call('RPUSH', list, own[2])
  else
    redis.call('XADD', stream, '*', unpack(own))
  end
end

-- Takes the turn from a task that is not in the queue any more.
local function end_turn(id)
  local noted = redis.call('HGET', owners, id)
  if not noted then return end
  redis.call('HDEL', owners, id)
  redis.call('ZREM', tracks, string.match(noted, '^%S+') .. '/b/' .. id)
end

-- Removes a task from the delayed ones, or its entry.
local function remove(one, is_delayed)
  if is_delayed then
    redis.call('ZREM', tracks, one)
    redis.call('ZREM', delayed, one)
    redis.call('HDEL', parked, one)
  else
    redis.call('XACK', stream, group, one)
    redis.call('XDEL', stream, one)
  end
end

for i = tasks_at, #ARGV do
  local one, kind, fields = ARGV[i], nil, nil
  -- A delayed task's member may be the id of its former entry, so it is looked for first.
  local score = redis.call('ZSCORE', delayed, one)
  if score then
    fields = parked_fields(redis.call('HGET', parked, one) or '')
    kind = kind_of_delayed(fields, score)
  elseif is_entry_id(one) then
    fields = fields_in(stream, one)
    kind = kind_of_entry(one, fields, fields and value_in(fields, 'tq-id') or one)
  end
  if kind then count[kind] = (count[kind] or 0) + 1 end
  local is_over = kind == 'ended' or kind == 'gone'
  if is_given[kind] then
    done = done + 1
  elseif kind and not is_over then
    left = left + 1
  end
  if not only_looks and (is_given[kind] or is_over) then
    local id = fields and value_in(fields, 'tq-id') or one
    if is_given[kind] then give(content_of(fields)) end
    if fields then end_turn(id) end
    -- A mark that stayed would end a later task with this id.
    if kind == 'ended' then redis.pcall('HDEL', statuses .. id, 'cancel', 'stops') end
    remove(one, score)
  end
end
local out = { done, left, latest }
for _, kind in ipairs(KINDS) do append(out, count[kind] or 0) end
return out
