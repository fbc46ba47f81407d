-- Settles attempts: each one ends its task, or puts it back to run again. Each succeeds or fails alone.
--
-- KEYS  stream, delayed, parked, dead, replies (the last reply to this consumer's calls in one lane),
--       statuses... (of the plain attempts; attempts that set values come last), value_keys... (of the
--       values that attempts set), attempts... (the other ones)
-- ARGV  group, retention, window, consumer, number (of this call, higher than those before), without (how
--       many plain attempts set no values and have no result), with (how many of these have one), set_without
--       (how many plain attempts set values and have no result), set_with (how many of these have one),
--       values (how many values they set), plugin (that ran the plain ones), entries..., enqueued_at... (ms),
--       ran... (ms), results... (of the plain attempts that set no values), set_entries...,
--       set_enqueued_at..., set_ran..., set_results... (of those that set values), set_counts... (how many
--       values each of them sets), set_values..., attempts... (the other ones)
--
-- An attempt is plain when it is the first one of its task and completed it, the task cannot have a status
-- yet, and its host has held it for less than half a lease, so that no other host can own it. Its only
-- effects are values of the state that it sets and that do not expire.
--
-- Returns { entry, result } for each attempt with a result other than 1, which means done:
--   2: the attempt was dropped, because its id belongs to another entry
--   3: the task has ended, but its track or its flow could not be told, as its status says
--   0: another consumer settled or owns the task; nothing was written
--   the text of an error: nothing was written. It begins with TQEFFECT when the effects can never be
--   committed
--
-- XACK is the guard of each attempt. The result of a worker that lost its lease counts if it comes first,
-- except in a queue that limits which tasks run beside each other. Only the owner may let a task fail or run
-- again.
--
-- A call with the number of the last one gets the reply to that one, and does nothing else. So a repeated
-- call may name its attempts in another form and order. A call without attempts asks for the reply to the
-- call with its number. If that call has not arrived, the reply is nil, and the call does nothing when it
-- arrives. A call that arrives after a later one does nothing either, and its reply is nil.

-- How long (ms) the records of a task are kept after its last failure and the delay that follows: 30 days.
local RECORDS_LIVE = 2592000000
-- The most records that a queue keeps of a task.
local MOST_RECORDS = 100
-- The most tasks that share an entry of events.
local MOST_TOGETHER = 20
-- With fewer plain attempts than this, it costs less to write each status.
local LEAST_COPIED = 3
-- The most bytes of a result that are copied along.
local MOST_COPIED = 1024

-- The entries of the attempts that this call has settled, and the reply.
local settled, out
-- Times (ms) at which attempts began, as texts by how long they ran: writing a number as text is expensive.
local starts

-- When an attempt began that ran for `ran` ms until now.
local function started(ran)
  local text = starts[ran]
  if not text then
    text = string.format('%.0f', now - ran)
    starts[ran] = text
  end
  return text
end

-- Takes the next keys, and returns how many come before them.
local function take_keys(count)
  key_at = key_at + count
  return key_at - count - 1
end

-- Takes the next arguments, and returns how many come before them.
local function take_values(count)
  value_at = value_at + count
  return value_at - count - 1
end

-- Takes what the call says of `count` plain attempts, of which the last `results` ones have a result. In the
-- batch that it returns, each list of keys or arguments is the number of those before it.
local function take_batch(count, results)
  return {
    count = count, results = results, statuses = take_keys(count), entries = take_values(count),
    enqueued_at = take_values(count), ran = take_values(count), texts = take_values(results),
  }
end

-- Returns which attempts of a batch this consumer may settle, after XACK counted only `acked` of its entries.
-- It may settle an attempt whose entry exists, unless the entry comes after the last delivered one: then
-- Redis forgot the delivery, and will deliver the entry again. It may also settle an attempt whose entry was
-- deleted while it was pending, unless its status says that the task has ended.
local function find_ours(batch, acked)
  local ours, latest = {}, last_delivered() or '0-0'
  for i = 1, batch.count do
    local entry = ARGV[batch.entries + i]
    ours[i] = not comes_after(entry, latest) and exists(entry)
    if ours[i] then acked = acked - 1 end
  end
  for i = 1, batch.count do
    if not ours[i] and acked > 0 then
      -- In a queue without a retention, the status of a cancelled task has only `cancelled`, for a minute.
      local status, cancelled = unpack(redis.pcall('HMGET', KEYS[batch.statuses + i], 'status', 'cancelled'))
      ours[i] = not cancelled and status ~= 'CANCELLED' and status ~= 'COMPLETED' and status ~= 'FAILED'
      if ours[i] then acked = acked - 1 end
    end
  end
  return ours
end

-- Completes the attempts of a batch that are in `ours` (false: all of them).
local function complete_each(batch, ours)
  -- All attempts share these lists, because new ones for each of them would be expensive. `own` has the
  -- fields in which their statuses differ.
  local own = { 'enqueued_at', '', 'started_at', '' }
  local changes = {
    'enqueued_at', '', 'started_at', '', 'attempt', '1', 'plugin', plugin, 'consumer', consumer,
  }
  -- A copy of one status, with its own fields changed, costs half as much as writing all fields.
  local model = tonumber(retention) > 0 and batch.count >= LEAST_COPIED and { changes = own } or nil
  local ended = {
    marker = stream, id = false, how = 'COMPLETED', changes = changes, is_new = true, model = model,
  }

  local function complete(i)
    if ours and not ours[i] then return 0 end
    local status, entry = KEYS[batch.statuses + i], ARGV[batch.entries + i]
    own[2], own[4] = ARGV[batch.enqueued_at + i], started(ARGV[batch.ran + i])
    changes[2], changes[4] = own[2], own[4]
    local nth_result = i - (batch.count - batch.results)
    if nth_result > 0 then
      own[5], own[6] = 'result', ARGV[batch.texts + nth_result]
      changes[11], changes[12] = own[5], own[6]
    end
    ended.status, ended.entry = status, entry
    settled[#settled + 1] = entry
    local result = end_task(ended)
    -- A copy begins with the result of its model, so one with a large result costs more than it saves.
    -- Nothing is copied from a status that something else had written into before.
    if model and not model.status and #(own[6] or '') <= MOST_COPIED
      and redis.pcall('HLEN', status) == 2 + #changes / 2 then
      model.status = status
    end
    return result
  end

  for i = 1, batch.count do
    local result = try(complete, i)
    if result ~= 1 then append(out, { ARGV[batch.entries + i], result }) end
  end
end

-- Completes a batch of plain attempts. `set_values`, if there is one, writes the values of those in a list as
-- `find_ours` returns it, and returns the text of an error if it cannot.
local function complete_plain(batch, set_values)
  -- One XACK is enough for all attempts: no other host can have settled one. If it counts fewer entries than
  -- it was given, somebody cancelled a task or deleted its entry.
  local first, last = batch.entries + 1, batch.entries + batch.count
  local acked = redis.pcall('XACK', stream, group, unpack(ARGV, first, last))
  local refusal = type(acked) == 'table' and acked.err
  local ours = not refusal and acked < batch.count and find_ours(batch, acked)
  refusal = refusal or set_values and set_values(ours)
  if refusal then
    for i = 1, batch.count do append(out, { ARGV[batch.entries + i], refusal }) end
    return
  end
  -- The tasks share entries of events, which cost less than one for each.
  local events, before = told.events, #settled
  told.events = nil
  complete_each(batch, ours)
  told.events = events
  while events and before < #settled do
    local from = before + 1
    before = math.min(before + MOST_TOGETHER, #settled)
    add_event('ids', table.concat(settled, ' ', from, before), 'status', 'COMPLETED', 'attempt', '1')
  end
end

-- Completes `count` plain attempts that set `values` values together.
local function complete_setters(count, results, values)
  local batch = take_batch(count, results)
  local counts, keys, value = take_values(count), take_keys(values), take_values(values)
  complete_plain(batch, function(ours)
    local writes, size = {}, 0
    -- The attempt that sets the next value, and how many more values it sets. Where all attempts are ours,
    -- nobody needs to know.
    local attempt, more = 0, 0
    for i = 1, values do
      while ours and more == 0 do
        attempt = attempt + 1
        more = tonumber(ARGV[counts + attempt])
      end
      more = more - 1
      if not ours or ours[attempt] then
        writes[size + 1], writes[size + 2] = KEYS[keys + i], ARGV[value + i]
        size = size + 2
      end
    end
    local written = size > 0 and redis.pcall('MSET', unpack(writes))
    return type(written) == 'table' and written.err
  end)
end

-- Whether this consumer still has a task whose entry was deleted while it ran: heartbeat.lua noted that in
-- its status.
local function has_without_entry(status, entry)
  local _, known_entry, _, runner, kept_until = place_of(status)
  return kept_until > 0 and runner == consumer and known_entry == entry
end

-- A list too long for one call in Lua (7,000 values) is kept whole in the field tq-packed, as MessagePack.
local function packed(fields)
  if #fields <= 7000 then return fields end
  local own, short = {}, {}
  for i = 1, #fields, 2 do
    local is_short = string.sub(fields[i], 1, 3) == 'tq-' and #short < 100
    append(is_short and short or own, fields[i], fields[i + 1])
  end
  append(short, 'tq-packed', cmsgpack.pack(own))
  return short
end

-- The member of a delayed task is named after its former entry, not its id: two tasks may have one id.
local function park(one, mark)
  local status, due = one.status, (one.from ~= '' and one.from or now) + one.delay
  local place, where = put(here, one.fields, due, one.entry)
  -- The status speaks of a cancelled run under this id until that is stopped.
  if mark == 'elsewhere' then return end
  forget_end(status, 'progress', 'note', 'entry', 'parked_as', 'deleted')
  set_status(status, 'status', 'PENDING', 'attempt', one.attempt, 'enqueued_at', one.enqueued_at,
    'due_at', due, place, where)
  if one.message ~= '' then redis.call('HSET', status, 'error', one.message) end
  task_event(one.id, 'PENDING', 'attempt', one.attempt, 'due_at', due)
end

-- The record of a failed attempt.
-- KEYS  key
-- ARGV  most (how many the task may have), attempt, outcome, log (its last lines)
local failure = {}

-- Adds the record of a failed attempt to those of its task, and deletes the oldest. The status names their
-- key, and `end_task` lets it expire with the status. If the status gets lost, the key expires by itself.
local function add_record(one)
  local record = one.record
  local number = redis.pcall('HINCRBY', record.key, 'last', 1)
  -- If the key holds something else, it is replaced: it is tqhost's.
  if type(number) == 'table' then
    redis.pcall('DEL', record.key)
    number = redis.pcall('HINCRBY', record.key, 'last', 1)
    if type(number) == 'table' then return end
  end
  redis.call('HSET', record.key, number, cjson.encode({
    attempt = record.attempt, finished_at = now_text, ran = one.ran, plugin = one.plugin,
    consumer = consumer, outcome = record.outcome, error = one.message, log = record.log,
  }))
  -- The queue may have kept more of them before.
  local old = {}
  for n = math.max(1, number - MOST_RECORDS), number - record.most do append(old, n) end
  if #old > 0 then redis.call('HDEL', record.key, unpack(old)) end
  redis.call('PEXPIRE', record.key, RECORDS_LIVE + one.delay)
  set_status(one.status, 'attempts', record.key)
end

-- Drops an acknowledged entry whose id belongs to another entry. The task of that one stays as it is, and so
-- does its turn. `letter` is the content of a dead letter, if this entry becomes one. Returns the result.
local function drop_second(id, entry, letter)
  if letter then redis.call('XADD', dead, '*', unpack(letter)) end
  -- The entry is settled, so an error of its track does not count.
  if turns.limit then try(tracks.free, id, entry) end
  return letter and 1 or 2
end

-- The content of a dead letter.
local function letter_of(fields)
  local letter = packed(fields)
  append(letter, 'tq-failed-at', now_text)
  return letter
end

-- Settles an attempt that is not plain, and returns its result. If a key that it has to write has another
-- type, it fails before the first write.
local function settle(one)
  local status, entry, id, fields = one.status, one.entry, one.id, one.fields
  local completes, buries = one.how == 'COMPLETED', one.how == 'FAILED'
  local parks = not completes and not buries
  local anyone_may = one.needs_owner ~= '1'
  local mark = not one.is_new and mark_of(status, entry)
  local is_cancelled = mark == 'here'
  if #one.effects > 0 then
    -- Effects are checked before the first write, and only for the consumer that may commit them.
    local is_ours = anyone_may and pending_of(entry) or owned(entry, consumer)
    if not is_ours and not has_without_entry(status, entry) then return 0 end
    local refusal = not is_cancelled and effects.refusal_of(one.effects)
    if refusal then return refusal end
  end
  local ends = completes or buries or is_cancelled
  local bad = to_wait_for(buries and wrong_type(dead, 'stream')
    or parks and wrong_type(delayed, 'zset', parked, 'hash')
    or ends and not one.is_new and join_refusal(status))
  if bad then return bad.err end

  local is_acked = (anyone_may or owned(entry, consumer)) and redis.call('XACK', stream, group, entry) == 1
  if not is_acked and not has_without_entry(status, entry) then return 0 end
  -- If the id belongs to another entry, this is a duplicate that never passed begin.lua, and the status
  -- stays with the other entry. An entry that is no task at all becomes a dead letter without a status.
  local is_second = not completes and is_elsewhere(status, entry, id)
  if is_second or buries and mark == 'elsewhere' then
    local has_letter = buries and (not is_second or value_in(fields, 'tq-reason') == 'malformed')
    return drop_second(id, entry, has_letter and letter_of(fields))
  end
  if is_cancelled then
    for _, effect in ipairs(one.effects) do
      if effect.kind.take_back then effect.kind.take_back(effect) end
    end
    one.how, one.changes = 'CANCELLED', {}
    return end_task(one)
  end
  if one.record then add_record(one) end
  if parks then
    park(one, mark)
    return 1
  end
  -- Every status but that of a plain task names the entry, so that two tasks with one id are not confused.
  one.changes = {
    'attempt', one.attempt, 'plugin', one.plugin, 'consumer', consumer, 'enqueued_at', one.enqueued_at,
    'entry', entry,
  }
  if one.ran ~= '' then append(one.changes, 'started_at', started(one.ran)) end
  if completes then
    append(one.changes, unpack(fields))
    for _, effect in ipairs(one.effects) do effect.kind.commit(effect) end
  else
    append(one.changes, 'error', one.message)
    one.letter = letter_of(fields)
  end
  return end_task(one)
end

-- An attempt that is not plain. Its fields are those of the status (COMPLETED), those of the dead letter
-- (FAILED), or those of the task for its next delivery (PENDING).
-- KEYS  status, marker, effects..., record...
-- ARGV  how (it ends: COMPLETED, FAILED or PENDING), needs_owner (1: only if this consumer owns the task),
--       is_new (1: the task can have no status yet), entry, attempt, plugin, enqueued_at, ran (ms; empty: it
--       did not run), id (of the task), message (the error; empty: none), from (when a delay begins, ms;
--       empty: now), delay (ms), fields[], effects... (how many, and for each its kind and what this kind
--       reads), has_record (1: with a record), record...
local attempt = {}

-- Reads the next attempt that is not plain.
local function next_attempt()
  local one = attempt.read()
  one.is_new = one.is_new == '1'
  one.effects = effects.read()
  one.record = next_value() == '1' and failure.read()
  return one
end

begin_call()
take_told()
local last = redis.call('GET', replies)
local before, reply_before = unpack(last and cmsgpack.unpack(last) or {})
before = tonumber(before)
if before and before >= tonumber(number) then return before == tonumber(number) and reply_before end

told.by, settled, out, starts = consumer, {}, {}, {}
key_at, value_at = statuses_key, entries_at
local plain, setters = without + with, set_without + set_with
if plain > 0 then complete_plain(take_batch(plain, tonumber(with))) end
if setters > 0 then complete_setters(setters, tonumber(set_with), tonumber(values)) end
while value_at <= #ARGV do
  local one = next_attempt()
  local result = try(settle, one)
  if type(result) == 'number' and result > 0 then append(settled, one.entry) end
  if result ~= 1 then append(out, { one.entry, result }) end
end

if #settled > 0 then redis.call('XDEL', stream, unpack(settled)) end
local has_attempts = #KEYS >= statuses_key
local reply = has_attempts and out
redis.pcall('SET', replies, cmsgpack.pack({ number, reply }), 'PX', 3600000)
return reply
