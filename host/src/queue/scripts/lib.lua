-- The functions that scripts share; this file stands in front of every script. Nothing here writes before
-- its caller's first write.

-- Redis's clock in milliseconds.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Whether `entry` is pending and belongs to `consumer`. False without a group; other errors end the script.
local function owned(stream, group, entry, consumer)
  local found = redis.pcall('XPENDING', stream, group, entry, entry, 1, consumer)
  if found.err and not string.find(found.err, 'NOGROUP', 1, true) then error(found) end
  return found.err == nil and #found == 1
end

-- Gives nil, or an error reply when `key` holds another type than `kind`.
local function wrong_type(key, kind)
  local got = redis.call('TYPE', key).ok
  if got ~= 'none' and got ~= kind then
    return redis.error_reply('TQTYPE ' .. key .. ' holds a ' .. got .. ', not a ' .. kind)
  end
  return nil
end

-- Writes fields of a task's status. A key of another type in its place is replaced: the key is tqhost's.
local function set_status(key, ...)
  local reply = redis.pcall('HSET', key, ...)
  if type(reply) == 'table' and reply.err then
    redis.call('DEL', key)
    redis.call('HSET', key, ...)
  end
end

-- What end_task needs: the keys of the queue, how long (ms) it keeps statuses and idempotency keys, and the
-- current time.
local function rules_of(stream, dead, retention, window)
  local now = string.format('%.0f', now_ms())
  return {
    stream = stream, dead = dead, now = now,
    keeps = tonumber(retention) > 0, retention = retention, window = window,
  }
end

-- The id of the task that has an idempotency key, or false. `marker` is the stream when there is no key. A
-- value of another type counts as no marker.
local function first_task(stream, marker)
  local found = marker ~= stream and redis.pcall('GET', marker)
  return type(found) == 'string' and found
end

-- Whether cancel.lua marked the task because its entry was not known. The script that finds the mark ends
-- the task.
local function is_marked(status)
  return redis.pcall('HGET', status, 'cancel') == '1'
end

-- Ends a task. No other function does, whatever the outcome and whichever script found it.
--
-- `rules` comes from rules_of. `marker` is the key that holds the task's idempotency key (the stream: it has
-- none). `is_known` is false for a task that can have no status yet. `letter` is the content of the dead
-- letter, or nil. `how` is COMPLETED, FAILED or CANCELLED; `changes` are the names and values of the other
-- fields of the status that change.
--
-- The order is: the dead letter, the status and its retention, the idempotency key. The caller has
-- acknowledged the entry before, or the first write here is an HDEL, so Redis does not refuse the rest when
-- its memory is full.
local function end_task(rules, status, marker, id, is_known, letter, how, changes)
  local dead = letter and redis.call('XADD', rules.dead, '*', unpack(letter))
  -- enqueue.lua knows a task by its id for at least a minute, so that a repeated call adds no second task.
  local is_enqueued = is_known and redis.pcall('HGET', status, 'enqueued') == '1'
  if rules.keeps then
    if is_known then
      redis.pcall('HDEL', status, 'due_at', 'parked_as', 'cancel', 'deleted', 'alone',
        how == 'COMPLETED' and 'error' or 'cancel')
    end
    -- The key mostly has the right type. Trying first saves one call for each task.
    local written = redis.pcall('HSET', status, 'status', how, 'finished_at', rules.now, unpack(changes))
    if type(written) == 'table' then
      set_status(status, 'status', how, 'finished_at', rules.now, unpack(changes))
    end
    if dead then redis.call('HSET', status, 'dead', dead) end
    local is_short = is_enqueued and tonumber(rules.retention) < 60000
    redis.call('PEXPIRE', status, is_short and 60000 or rules.retention)
  elseif is_known then
    redis.call('DEL', status)
    if is_enqueued then
      redis.call('HSET', status, 'enqueued', '1')
      redis.call('PEXPIRE', status, 60000)
    end
  end
  local has_key = marker ~= rules.stream and first_task(rules.stream, marker) == id
  if has_key then redis.call('PEXPIRE', marker, rules.window) end
end

-- Ends a task that can never run again, because its entry was deleted. Its idempotency key is free at once:
-- no task has done the work that the key stands for.
local function end_lost(rules, status, marker, id, why)
  local at_once = setmetatable({ window = 0 }, { __index = rules })
  end_task(at_once, status, marker, id, true, nil, 'FAILED', { 'error', 'lost: ' .. why })
end

-- Ends a task whose entry was deleted, unless the task has ended, waits in another place, or still runs at
-- a consumer other than `consumer`. True when it was ended. A task that was never begun may have no status;
-- where the queue keeps no statuses, a task without one may have ended.
local function note_lost(rules, status, marker, id, entry, consumer)
  -- The caller may have missed the entry before Redis came back with older data.
  if #redis.call('XRANGE', rules.stream, entry, entry) > 0 then return false end
  local known = redis.pcall('HMGET', status, 'status', 'entry', 'consumer', 'deleted')
  if known.err then return false end
  if known[3] ~= consumer and (tonumber(known[4] or '') or 0) > tonumber(rules.now) then return false end
  local is = known[1]
  if is and (known[2] ~= entry or (is ~= 'PENDING' and is ~= 'PROCESSING')) then return false end
  if not rules.keeps and not is then return false end
  end_lost(rules, status, marker, id, 'its entry was deleted from the stream')
  return true
end

-- The record of a pending entry, whoever owns it: { id, consumer, idle ms, deliveries }, or nil.
local function pending_of(stream, group, entry)
  local found = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if found.err then return nil end
  return found[1]
end

-- Whether a task that has not ended is under this entry: it waits or runs there, or its entry was deleted
-- while its host still runs it. heartbeat.lua notes the latter in the field `deleted` of the status, which
-- is `kept_until` here.
local function is_there(stream, group, entry, kept_until)
  return #redis.call('XRANGE', stream, entry, entry) > 0 or pending_of(stream, group, entry) ~= nil
    or (tonumber(kept_until or '') or 0) > now_ms()
end

-- Whether a task's status says that its id belongs to another entry: one that has completed, still exists,
-- or is delayed.
local function is_elsewhere(stream, group, delayed, status, entry)
  local known = redis.pcall('HMGET', status, 'status', 'entry', 'parked_as', 'deleted')
  if known.err or known[2] == entry then return false end
  if known[1] == 'COMPLETED' then return true end
  if known[1] ~= 'PENDING' and known[1] ~= 'PROCESSING' then return false end
  if known[2] then return is_there(stream, group, known[2], known[4]) end
  return known[3] and type(redis.pcall('ZSCORE', delayed, known[3])) == 'string'
end

-- Whether the task `id`, which has an idempotency key, is in no place any more and will never run. If so, it
-- is ended, and its key is free. `holder` is the status of that task. A task whose place is not certain
-- counts as existing.
local function is_gone(rules, delayed, group, holder, marker, id)
  if redis.call('PTTL', marker) ~= -1 then return false end
  local known = redis.pcall('HMGET', holder, 'status', 'entry', 'parked_as', 'deleted')
  if known.err or (known[1] ~= 'PENDING' and known[1] ~= 'PROCESSING') then return false end
  if not known[2] or is_there(rules.stream, group, known[2], known[4]) then return false end
  if known[3] and redis.call('ZSCORE', delayed, known[3]) then return false end
  end_lost(rules, holder, marker, id, 'its entry was deleted from the stream')
  return true
end

-- Turns a list of names and values, as XINFO gives them, into a table by name.
local function named(list)
  local about = {}
  for i = 1, #list, 2 do about[list[i]] = list[i + 1] end
  return about
end

-- The entry that the group was given last, or nil where there is no group.
local function last_delivered(stream, group)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return nil end
  for _, fields in ipairs(groups) do
    local about = named(fields)
    if about['name'] == group then return about['last-delivered-id'] end
  end
  return nil
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
local function passed_over(stream, history, group, last, entry)
  if not last or comes_after(entry, last) or pending_of(stream, group, entry) then return 0 end
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

-- The task id that fields bear, or false.
local function id_in(fields)
  local id = false
  for i = 1, #fields, 2 do
    if fields[i] == 'tq-id' then id = tostring(fields[i + 1]) end
  end
  return id
end

-- ARGV from index `from` on.
local function rest(from)
  local out = {}
  for i = from, #ARGV do out[#out + 1] = ARGV[i] end
  return out
end
