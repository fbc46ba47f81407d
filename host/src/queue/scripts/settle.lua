-- Settles attempts: ends each task, or puts it back to run again. Each succeeds or fails alone.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 dead letters · 5 the last reply to this consumer's calls in one
--       lane · then for each attempt: status, and if `what` says so, the marker of its idempotency key
-- ARGV  1 group · 2 consumer · 3 retention ms · 4 window ms · 5 number of this call, higher than those before
--       6 how many attempts are plain and have no result · 7 how many are plain and have one
--       8 the plugin that ran the plain ones
--       then for each plain attempt: entry · enqueued-at ms · ms that it ran · the result, if it has one
--       then for each other attempt: what (see below) · entry · attempt · plugin · enqueued-at ms
--         · ms that it ran (empty: it did not), and
--         complete:  the result, where `what` says so
--         bury:      task id · error · how many values follow · the dead letter's fields, name and value
--         park:      delay ms · ms from which it counts (0: now) · error (empty: none) · how many values
--                    follow · the fields for the next delivery, name and value
-- `what` begins with C (complete), B (bury) or P (park). After it, m says that a marker is given; for
-- complete and park the task id is then the next value. For complete, r says that a result is given.
--
-- An attempt is plain when it is the first one of its task and completed it, the task cannot have a status
-- yet, and its host has held it for less than half a lease, so that no other host can own it.
--
-- Gives for each attempt 1: done; 0: another consumer settled or owns the task, nothing was written; or the
-- text of an error: nothing was written.
--
-- XACK is the guard of each attempt, and the script's first write. The result of a worker that lost its lease
-- counts, if it comes first; only the owner may bury or park. A repeated call gets the first reply. A call
-- that was delayed on its way and arrives after a later one does nothing.
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local last = redis.call('GET', KEYS[5])
last = last and cmsgpack.unpack(last)
if last and tonumber(last[1]) >= tonumber(ARGV[5]) then return last[2] end

local rules = rules_of(stream, KEYS[4], ARGV[3], ARGV[4])
local now = tonumber(rules.now)
local key, at = 5, 8
local settled, out = {}, {}

-- Times of starts, by their age in ms: writing a number as text is expensive.
local starts = {}
local function started(ran)
  local text = starts[ran]
  if not text then
    text = string.format('%.0f', now - tonumber(ran))
    starts[ran] = text
  end
  return text
end

local function next_key()
  key = key + 1
  return KEYS[key]
end

local function next_value()
  at = at + 1
  return ARGV[at]
end

local function next_list()
  local count = tonumber(next_value())
  local list = {}
  for i = 1, count do list[i] = ARGV[at + i] end
  at = at + count
  return list
end

-- An entry that was deleted is not pending. heartbeat.lua noted that it still belongs to this consumer.
local function is_kept(status, entry)
  local known = redis.pcall('HMGET', status, 'deleted', 'consumer', 'entry')
  return not known.err and known[1] and known[2] == consumer and known[3] == entry
end

local function acked(status, entry)
  return redis.call('XACK', stream, group, entry) == 1 or is_kept(status, entry)
end

-- Whether the task's id belongs to another entry. Then this one is a duplicate that never passed begin.lua,
-- and the status stays with the other entry.
local function is_duplicate(status, entry)
  return is_elsewhere(stream, group, KEYS[2], status, entry)
end

local function is_owner(status, entry)
  return owned(stream, group, entry, consumer) or is_kept(status, entry)
end

-- Every status but that of a plain task names the entry, so that two tasks with one id are not confused.
-- `name` and `value` are one more field of the status, if there is one.
local function end_attempt(
  status, marker, id, letter, how, entry, attempt, plugin, enqueued_at, ran, name, value
)
  if is_marked(status) then return end_task(rules, status, marker, id, true, nil, 'CANCELLED', {}) end
  local changes = {
    'attempt', attempt, 'plugin', plugin, 'consumer', consumer, 'enqueued_at', enqueued_at, 'entry', entry,
  }
  local function change(field, to)
    changes[#changes + 1] = field
    changes[#changes + 1] = to
  end
  if ran ~= '' then change('started_at', started(ran)) end
  if name then change(name, value) end
  end_task(rules, status, marker, id, true, letter, how, changes)
end

local function complete(what, entry, attempt, plugin, enqueued_at, ran)
  local status, marker, id, result = next_key(), stream, false, nil
  if string.find(what, 'm', 2, true) then marker, id = next_key(), next_value() end
  if string.find(what, 'r', 2, true) then result = next_value() end
  if not acked(status, entry) then return 0 end
  end_attempt(status, marker, id, nil, 'COMPLETED', entry, attempt, plugin, enqueued_at, ran,
    result and 'result', result)
  return 1
end

-- A list too long for one call in Lua (7,000 values) is kept whole in the field tq-packed, as MessagePack.
local function packed(fields)
  if #fields <= 7000 then return fields end
  local own, short = {}, {}
  for i = 1, #fields, 2 do
    local into = string.sub(fields[i], 1, 3) == 'tq-' and #short < 100 and short or own
    into[#into + 1] = fields[i]
    into[#into + 1] = fields[i + 1]
  end
  short[#short + 1] = 'tq-packed'
  short[#short + 1] = cmsgpack.pack(own)
  return short
end

-- The dead letter is written together with the ack, or not at all: if its key has another type, the call
-- fails before the first write.
local function bury(what, entry, attempt, plugin, enqueued_at, ran)
  local status, marker = next_key(), stream
  if string.find(what, 'm', 2, true) then marker = next_key() end
  local id, error, fields = next_value(), next_value(), packed(next_list())
  local bad = wrong_type(KEYS[4], 'stream')
  if bad then return bad.err end
  if not is_owner(status, entry) or not acked(status, entry) then return 0 end
  if is_duplicate(status, entry) then return 1 end
  fields[#fields + 1] = 'tq-failed-at'
  fields[#fields + 1] = rules.now
  end_attempt(status, marker, id, fields, 'FAILED', entry, attempt, plugin, enqueued_at, ran, 'error', error)
  return 1
end

-- The member of a delayed task is named after its former entry, not its id: two tasks may have one id.
local function park(what, entry, attempt, _, enqueued_at)
  local status, marker, id = next_key(), stream, false
  if string.find(what, 'm', 2, true) then marker, id = next_key(), next_value() end
  local delay, since = tonumber(next_value()), tonumber(next_value())
  local error, fields = next_value(), next_list()
  local bad = wrong_type(KEYS[2], 'zset') or wrong_type(KEYS[3], 'hash')
  if bad then return bad.err end
  if not is_owner(status, entry) or not acked(status, entry) then return 0 end
  if is_duplicate(status, entry) then return 1 end
  if is_marked(status) then
    end_task(rules, status, marker, id, true, nil, 'CANCELLED', {})
    return 1
  end
  if since == 0 then since = now end
  local due = since + delay
  local place, where
  if due <= now then
    place, where = 'entry', redis.call('XADD', stream, '*', unpack(fields))
  else
    redis.call('ZADD', KEYS[2], due, entry)
    redis.call('HSET', KEYS[3], entry, cmsgpack.pack(fields))
    place, where = 'parked_as', entry
  end
  redis.pcall('HDEL', status, 'progress', 'note', 'entry', 'parked_as', 'deleted')
  set_status(status, 'status', 'PENDING', 'attempt', attempt, 'enqueued_at', enqueued_at, 'due_at', due,
    place, where)
  if error ~= '' then redis.call('HSET', status, 'error', error) end
  return 1
end

-- Gives which plain attempts this consumer may settle, after XACK counted fewer entries (`acked`) than were
-- named. It may settle an attempt whose entry exists, unless the entry comes after the last delivered one:
-- then Redis forgot the delivery, and will deliver the entry again. It may also settle an attempt whose entry
-- was deleted while it was pending, unless its status says that the task has ended.
local function told_apart(entries, acked)
  local ours, last = {}, last_delivered(stream, group) or '0-0'
  for i, entry in ipairs(entries) do
    ours[i] = not comes_after(entry, last) and #redis.call('XRANGE', stream, entry, entry) > 0
    if ours[i] then acked = acked - 1 end
  end
  for i = 1, #entries do
    if not ours[i] and acked > 0 then
      local status = redis.pcall('HGET', KEYS[key + i], 'status')
      ours[i] = status ~= 'CANCELLED' and status ~= 'COMPLETED' and status ~= 'FAILED'
      if ours[i] then acked = acked - 1 end
    end
  end
  return ours
end

-- One XACK is enough for all plain attempts: no other host can have settled one. If it counts fewer than were
-- named, somebody cancelled or deleted one of them.
local function complete_plain(without, with)
  local entries, from = {}, at
  for i = 1, without + with do
    entries[i] = ARGV[at + 1]
    at = at + (i > without and 4 or 3)
  end
  at = from
  local acked = redis.pcall('XACK', stream, group, unpack(entries))
  local refused = type(acked) == 'table' and acked.err
  local ours = not refused and acked < #entries and told_apart(entries, acked)
  -- All attempts share one list, because a new list for each of them would be expensive.
  local changes = {
    'attempt', '1', 'plugin', ARGV[8], 'consumer', consumer, 'enqueued_at', '', 'started_at', '',
  }
  for i, entry in ipairs(entries) do
    local status = next_key()
    if refused or (ours and not ours[i]) then
      out[i] = refused or 0
    else
      changes[8], changes[10] = ARGV[at + 2], started(ARGV[at + 3])
      if i > without then changes[11], changes[12] = 'result', ARGV[at + 4] end
      local went, why = pcall(end_task, rules, status, stream, false, false, nil, 'COMPLETED', changes)
      out[i] = went and 1 or (type(why) == 'table' and why.err or tostring(why))
      settled[#settled + 1] = entry
    end
    at = at + (i > without and 4 or 3)
  end
end

local count = ARGV[6] + ARGV[7]
if count > 0 then complete_plain(tonumber(ARGV[6]), tonumber(ARGV[7])) end

local kinds = { C = complete, B = bury, P = park }
while at < #ARGV do
  local what, entry = ARGV[at + 1], ARGV[at + 2]
  at = at + 6
  local went, result = pcall(kinds[string.sub(what, 1, 1)], what, entry, ARGV[at - 3], ARGV[at - 2],
    ARGV[at - 1], ARGV[at])
  if not went then result = type(result) == 'table' and result.err or tostring(result) end
  if result == 1 then settled[#settled + 1] = entry end
  count = count + 1
  out[count] = result
end

if #settled > 0 then redis.call('XDEL', stream, unpack(settled)) end
redis.pcall('SET', KEYS[5], cmsgpack.pack({ ARGV[5], out }), 'PX', 3600000)
return out
