-- Put in front of every script. Nothing here writes before its caller's first write.

-- Redis's clock in milliseconds.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Whether `entry` is pending and belongs to `consumer`. It does not where there is no group; any other error is the script's.
local function owned(stream, group, entry, consumer)
  local found = redis.pcall('XPENDING', stream, group, entry, entry, 1, consumer)
  if found.err and not string.find(found.err, 'NOGROUP', 1, true) then error(found) end
  return found.err == nil and #found == 1
end

-- nil, or an error reply when `key` holds something else than `kind`.
local function wrong_type(key, kind)
  local got = redis.call('TYPE', key).ok
  if got ~= 'none' and got ~= kind then
    return redis.error_reply('TQTYPE ' .. key .. ' holds a ' .. got .. ', not a ' .. kind)
  end
  return nil
end

-- Writes fields of a task's status. A key of another type in its place is replaced: status is ours alone.
-- Returns false when it could not be written (out of memory, as a script's first write).
local function set_status(key, ...)
  local reply = redis.pcall('HSET', key, ...)
  if type(reply) ~= 'table' or reply.err == nil then return true end
  if string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then return false end
  redis.call('DEL', key)
  redis.call('HSET', key, ...)
  return true
end

-- A task's end: its status expires after `retention` ms, or is not kept at all.
-- One that was accepted by enqueue.lua is known by its id for a minute longer, so that a call that is repeated is not a second task.
local function end_status(key, retention)
  local minute = 60000
  local ours = retention < minute and redis.pcall('HGET', key, 'enqueued') == '1'
  if retention == 0 then redis.call('DEL', key) end
  if ours and retention == 0 then redis.call('HSET', key, 'enqueued', '1') end
  if ours then redis.call('PEXPIRE', key, minute) elseif retention > 0 then redis.call('PEXPIRE', key, retention) end
end

-- The id of the task that has an idempotency key, or false. `marker` is the stream when there is no key. What is no marker is taken for none.
local function first_task(stream, marker)
  local found = marker ~= stream and redis.pcall('GET', marker)
  return type(found) == 'string' and found
end

-- The end of the task `id` that has an idempotency key: its marker stays for `window` ms. `marker` is the stream when there is no key.
local function end_marker(stream, marker, id, window)
  if first_task(stream, marker) == id then redis.call('PEXPIRE', marker, window) end
end

-- Whether the task was marked by cancel.lua, which did not know under which entry it waited: whoever finds the mark ends the task.
local function take_mark(status)
  local marked = redis.pcall('HGET', status, 'cancel') == '1'
  if marked then redis.call('HDEL', status, 'cancel') end
  return marked
end

-- Notes on its status that a task is lost, because somebody deleted its entry: unless the task has ended, or waits somewhere else.
-- True when it was noted. One that was never begun may have no status before this; one that kept none may have ended.
local function note_lost(status, entry, retention)
  local known = redis.pcall('HMGET', status, 'status', 'entry')
  if known.err then return false end
  local is = known[1]
  if is and (known[2] ~= entry or (is ~= 'PENDING' and is ~= 'PROCESSING')) then return false end
  if retention == 0 and not is then return false end
  if not set_status(status, 'status', 'FAILED', 'error', 'lost: its entry was deleted from the stream', 'finished_at', now_ms()) then
    return false
  end
  end_status(status, retention)
  return true
end

-- The entry that the group was given last, or nil where there is no group.
local function last_delivered(stream, group)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return nil end
  for _, fields in ipairs(groups) do
    local about = {}
    for i = 1, #fields, 2 do about[fields[i]] = fields[i + 1] end
    if about['name'] == group then return about['last-delivered-id'] end
  end
  return nil
end

-- Whether the entry id `a` comes after `b`. Both halves may have 64 bits, too many for a number here: they are compared as text.
local function comes_after(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then a_seq, b_seq = a_ms, b_ms end
  if #a_seq ~= #b_seq then return #a_seq > #b_seq end
  return a_seq > b_seq
end

-- The consumer-independent record of a pending entry, { id, consumer, idle ms, deliveries }, or nil.
local function pending_of(stream, group, entry)
  local found = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if found.err then return nil end
  return found[1]
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
