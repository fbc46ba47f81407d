-- Where a task is, and what became of it if it is nowhere. This file stands behind ends.lua, in front of
-- every script.

-- Reads from a task's status where the task is. Returns the status, the entry, the member of the delayed
-- tasks, the consumer, and until when (ms) this consumer may run the task although its entry was deleted, as
-- heartbeat.lua notes (0: it may not). All but the last are nil when the key has another type.
local function place_of(status)
  local known = redis.pcall('HMGET', status, 'status', 'entry', 'parked_as', 'consumer', 'deleted')
  return known[1], known[2], known[3], known[4], tonumber(known[5]) or 0
end

-- Whether a task that has not ended is under this entry: it waits or runs there, or it runs although the
-- entry was deleted.
local function is_there(entry, kept_until)
  return exists(entry) or pending_of(entry) ~= nil or kept_until > now
end

-- Whether a task that has not ended is in one of the places that its status names.
local function has_place(entry, member, kept_until)
  return entry and is_there(entry, kept_until)
    or member and type(redis.pcall('ZSCORE', delayed, member)) == 'string'
end

-- Ends a task whose entry was deleted, unless the task has ended, waits in another place, or still runs at
-- a consumer other than `consumer` (nil: at any). Returns whether it was ended. A task that was never begun
-- may have no status; where the queue keeps no statuses, a task without one may have ended.
local function note_lost(status, marker, id, entry, consumer)
  local state, known_entry, _, runner, kept_until = place_of(status)
  -- The caller may have missed the entry before Redis came back with older data.
  if state == nil or exists(entry) then return false end
  if runner ~= consumer and kept_until > now then return false end
  if state and (known_entry ~= entry or not is_live(state)) then return false end
  if not state and tonumber(retention) == 0 then return false end
  return end_lost(status, marker, id, 'its entry was deleted from the stream')
end

-- Whether a status says that the id of a task belongs to another entry: it completed, exists, is delayed, or
-- is held by the flow that it joins.
local function is_elsewhere(status, entry, id)
  local state, known_entry, member, _, kept_until = place_of(status)
  if known_entry == entry then return false end
  if state == 'COMPLETED' then return true end
  if known_entry or member then return is_live(state) and has_place(known_entry, member, kept_until) end
  -- Most tasks that begin have no status, and need no second look.
  return state == 'PENDING' and is_held(status, id)
end

-- Ends the task `id`, which has an idempotency key, if it is in no place any more and will never run. Then
-- its key is free. `holder` is the status of that task. A task whose place is not certain counts as existing.
-- Returns whether the task was ended.
local function end_if_gone(holder, marker, id)
  if redis.call('PTTL', marker) ~= -1 then return false end
  local state, entry, member, _, kept_until = place_of(holder)
  if not entry or not is_live(state) or has_place(entry, member, kept_until) then return false end
  return end_lost(holder, marker, id, 'its entry was deleted from the stream')
end

-- Whether a consumer's name is that of a host: it ends in the number of a process, 12 hexadecimal digits, and
-- perhaps a dot and a number, but not in a UUID. hosts.rs has the same rule.
local function is_host(name)
  local hex, named = string.rep('%x', 4), string.gsub(name, '%.%d+$', '')
  local uuid = table.concat({ hex .. hex, hex, hex, hex, hex .. hex .. hex }, '%-')
  return string.find(named, '%-%d+%-' .. hex .. hex .. hex .. '$') ~= nil
    and not string.find(named, '^' .. uuid .. '$') and not string.find(named, '%X' .. uuid .. '$')
end

-- Whether a consumer is that of another program, which served the group before tqhost came.
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

-- Whether the group has passed over an entry; `last` is the entry that the group was given last. Returns 1
-- when nothing will deliver the entry again, 2 when the group was done with it before tqhost came (it is
-- history), and 0 otherwise. If the history has no note of this group, no host has come yet.
local function passed_over(history, last, entry)
  if not last or comes_after(entry, last) or pending_of(entry) then return 0 end
  local noted = redis.call('HGET', history, group) or last
  return comes_after(entry, noted) and 1 or 2
end

-- The fields of a delayed task, from the text that was parked. Nil when it cannot be read.
local function parked_fields(packed)
  local read, fields = pcall(cmsgpack.unpack, packed)
  if not read or type(fields) ~= 'table' or #fields == 0 or #fields % 2 == 1 then return nil end
  for i = 1, #fields do
    if type(fields[i]) ~= 'string' and type(fields[i]) ~= 'number' then return nil end
  end
  return fields
end

-- The bytes of fields, names included.
local function size_of(fields)
  local size = 0
  for _, part in ipairs(fields) do size = size + #part end
  return size
end
