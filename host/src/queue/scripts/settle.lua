-- Settles attempts: ends each task, or puts it back to run again. Each succeeds or fails alone.
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
-- yet, and its host has held it for less than half a lease, so that no other host can own it. Of all effects
-- it may have only values of the state that are set and do not expire.
--
-- Returns { entry, result } for each attempt with a result other than 1, which means done. 2: dropped,
-- because its id belongs to another entry; 3: the task has ended, but its track or its flow does not know it,
-- as its status says; 0: another consumer settled or owns the task, nothing was written; or the text of an
-- error: nothing was written. It begins with TQEFFECT when the effects can never be committed.
--
-- XACK is the guard of each attempt. The result of a worker that lost its lease counts, if it comes first,
-- except in a queue that limits which tasks run beside each other; only the owner may let a task fail or run
-- again. A call with the number of the last one gets the reply to that one, and does nothing else. So a
-- repeated call may name its attempts in another form and order. A call without attempts asks for the reply
-- to the one with its number. If that call has not arrived, the reply is nil, and the call does nothing when
-- it arrives. A call that arrives after a later one does nothing either, and its reply is nil.

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
-- Times of starts, by their age in ms: writing a number as text is expensive.
local starts

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

-- Takes what the call says of `count` plain attempts, `results` of which have a result: where their statuses,
-- entries, times of enqueueing, durations and results begin.
local function take_plain(count, results)
  return take_keys(count), take_values(count), take_values(count), take_values(count), take_values(results)
end

-- Returns which of some plain attempts this consumer may settle, after XACK counted fewer entries (`acked`)
-- than were named. It may settle an attempt whose entry exists, unless the entry comes after the last
-- delivered one: then Redis forgot the delivery, and will deliver the entry again. It may also settle an
-- attempt whose entry was deleted while it was pending, unless its status says that the task has ended.
local function told_apart(acked, count, statuses, entries)
  local ours, latest = {}, last_delivered() or '0-0'
  for i = 1, count do
    local entry = ARGV[entries + i]
    ours[i] = not comes_after(entry, latest) and exists(entry)
    if ours[i] then acked = acked - 1 end
  end
  for i = 1, count do
    if not ours[i] and acked > 0 then
      -- A queue without a retention only keeps for a minute that the task was cancelled.
      local status, cancelled = unpack(redis.pcall('HMGET', KEYS[statuses + i], 'status', 'cancelled'))
      ours[i] = not cancelled and status ~= 'CANCELLED' and status ~= 'COMPLETED' and status ~= 'FAILED'
      if ours[i] then acked = acked - 1 end
    end
  end
  return ours
end

-- Completes `count` plain attempts, as `take_plain` took them. The last `results` ones have a result. `set`
-- writes their values, and returns an error if it cannot.
--
-- One XACK is enough for all of them: no other host can have settled one. If it counts fewer than were named,
-- somebody cancelled or deleted one of them.
local function complete_plain(count, results, set, statuses, entries, times, runs, texts)
  local acked = redis.pcall('XACK', stream, group, unpack(ARGV, entries + 1, entries + count))
  local refused = type(acked) == 'table' and acked.err
  local ours = not refused and acked < count and told_apart(acked, count, statuses, entries)
  refused = refused or set and set(ours)
  -- The tasks share entries, which cost less than one for each.
  local events, before = told.events, #settled
  told.events = nil
  -- All attempts share these lists, because new ones for each of them would be expensive.
  local own = { 'enqueued_at', '', 'started_at', '' }
  local changes = {
    'enqueued_at', '', 'started_at', '', 'attempt', '1', 'plugin', plugin, 'consumer', consumer,
  }
  -- Their statuses differ in few fields, and a copy of one costs half as much as to write all of them.
  local model = tonumber(retention) > 0 and count >= LEAST_COPIED and { changes = own } or nil
  local ended = {
    marker = stream, id = false, how = 'COMPLETED', changes = changes, is_new = true, model = model,
  }
  local i = 1
  -- Completes those that are left, and ends early with an error for attempt `i`.
  local function complete_rest()
    while i <= count do
      local entry, result = ARGV[entries + i], nil
      if refused or (ours and not ours[i]) then
        result = refused or 0
      else
        own[2], own[4] = ARGV[times + i], started(ARGV[runs + i])
        changes[2], changes[4] = own[2], own[4]
        if i > count - results then
          own[5], own[6] = 'result', ARGV[texts + i - count + results]
          changes[11], changes[12] = own[5], own[6]
        end
        local status = KEYS[statuses + i]
        ended.status, ended.entry = status, entry
        settled[#settled + 1] = entry
        result = end_task(ended)
        -- A copy begins with the result of its model, so one with a large result costs more than it saves.
        -- Nothing is copied from a status that something else had written into before.
        if model and not model.status and #(own[6] or '') <= MOST_COPIED
          and redis.pcall('HLEN', status) == 2 + #changes / 2 then
          model.status = status
        end
      end
      if result ~= 1 then append(out, { entry, result }) end
      i = i + 1
    end
  end
  -- Each attempt fails alone.
  while i <= count do
    local failure = try(complete_rest)
    if failure then
      append(out, { ARGV[entries + i], failure })
      i = i + 1
    end
  end
  told.events = events
  while events and before < #settled do
    local from = before + 1
    before = math.min(before + MOST_TOGETHER, #settled)
    add_event('ids', table.concat(settled, ' ', from, before), 'status', 'COMPLETED', 'attempt', '1')
  end
end

-- Completes `count` plain attempts that set `values` values together.
local function complete_setters(count, results, values)
  local statuses, entries, times, runs, texts = take_plain(count, results)
  local counts, keys, value = take_values(count), take_keys(values), take_values(values)
  local function set(ours)
    local writes, size = {}, 0
    -- The attempt whose value is next, and how many more values it has.
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
  end
  complete_plain(count, results, set, statuses, entries, times, runs, texts)
end

-- An entry that was deleted is not pending. heartbeat.lua noted that it still belongs to this consumer.
local function is_kept(status, entry)
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
  note(one.id, 'PENDING', 'attempt', one.attempt, 'due_at', due)
end

-- The record of a failed attempt.
-- KEYS  key
-- ARGV  most (how many the task may have), attempt, outcome, log (its last lines)
local failure = {}

-- Keeps the record of a failed attempt as one of the last ones of its task. The status names their key, and
-- `end_task` lets it expire with the status. If the status gets lost, the key expires by itself.
local function keep(one)
  local record = one.record
  local function next_number()
    return redis.pcall('HINCRBY', record.key, 'last', 1)
  end
  local number = next_number()
  -- If the key holds something else, it is replaced: it is tqhost's.
  if type(number) == 'table' then
    redis.pcall('DEL', record.key)
    number = next_number()
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

-- Leaves the task of another entry as it is, and its track too if this entry has no turn there. `letter` is
-- the content of a dead letter, if this entry is one for itself.
local function give_up(id, entry, letter)
  if letter then redis.call('XADD', dead, '*', unpack(letter)) end
  -- The entry is gone, so an error must not undo what was said of it.
  if turns.limit then failure_of(tracks.free, id, entry) end
  return letter and 1 or 2
end

-- The content of a dead letter.
local function letter_of(fields)
  local letter = packed(fields)
  append(letter, 'tq-failed-at', now_text)
  return letter
end

-- Settles an attempt that is not plain. If a key that it has to write has another type, it fails before the
-- first write.
local function settle(one)
  local status, entry, id, fields, all = one.status, one.entry, one.id, one.fields, one.effects
  local completes, buries, is_new = one.how == 'COMPLETED', one.how == 'FAILED', one.is_new
  local is_free = one.is_owners ~= '1'
  local mark, dropped = not is_new and mark_of(status, entry), nil
  if #all > 0 then
    -- The checks come before the first write, and so does the question who owns the entry.
    local is_ours = is_free and pending_of(entry) or owned(entry, consumer)
    if not is_ours and not is_kept(status, entry) then return 0 end
    if mark == 'here' then dropped, all = all, {} end
    local refusal = effects.refusal_of(all)
    if refusal then return refusal end
  end
  local bad = to_wait_for(buries and wrong_type(dead, 'stream')
    or not completes and not buries and wrong_type(delayed, 'zset', parked, 'hash')
    or not is_new and (completes or buries or mark == 'here') and join_refusal(status))
  if bad then return bad.err end
  local is_acked = (is_free or owned(entry, consumer)) and redis.call('XACK', stream, group, entry) == 1
  if not is_acked and not is_kept(status, entry) then return 0 end
  -- If the id belongs to another entry, this is a duplicate that never passed begin.lua, and the status
  -- stays with the other entry. What is no task at all is kept as a dead letter without a status.
  local is_another = not completes and is_elsewhere(status, entry, id)
  if is_another or buries and mark == 'elsewhere' then
    local has_letter = buries and (not is_another or value_in(fields, 'tq-reason') == 'malformed')
    return give_up(id, entry, has_letter and letter_of(fields))
  end
  if mark == 'here' then
    for _, effect in ipairs(dropped or {}) do
      if effect.kind.take_back then effect.kind.take_back(effect) end
    end
    one.how, one.changes = 'CANCELLED', {}
    return end_task(one)
  end
  if one.record then keep(one) end
  if not completes and not buries then
    park(one, mark)
    return 1
  end
  -- Every status but that of a plain task names the entry, so that two tasks with one id are not confused.
  local changes = {
    'attempt', one.attempt, 'plugin', one.plugin, 'consumer', consumer, 'enqueued_at', one.enqueued_at,
    'entry', entry,
  }
  if one.ran ~= '' then append(changes, 'started_at', started(one.ran)) end
  if completes then
    append(changes, unpack(fields))
    for _, effect in ipairs(all) do effect.kind.commit(effect) end
  else
    append(changes, 'error', one.message)
    one.letter = letter_of(fields)
  end
  one.changes = changes
  return end_task(one)
end

-- An attempt that is not plain. Its fields are those of the status (COMPLETED), those of the dead letter
-- (FAILED), or those of the task for its next delivery (PENDING).
-- KEYS  status, marker, effects..., record...
-- ARGV  how (it ends: COMPLETED, FAILED or PENDING), is_owners (1: only if this consumer owns the task),
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
last = last and cmsgpack.unpack(last)
local before = last and tonumber(last[1])
if before and before >= tonumber(number) then return before == tonumber(number) and last[2] end

told.by, settled, out, starts = consumer, {}, {}, {}
key_at, value_at = statuses_key, entries_at
local plain, setters = without + with, set_without + set_with
if plain > 0 then complete_plain(plain, tonumber(with), nil, take_plain(plain, with)) end
if setters > 0 then complete_setters(setters, tonumber(set_with), tonumber(values)) end
while value_at <= #ARGV do
  local one = next_attempt()
  local result = try(settle, one)
  if type(result) == 'number' and result > 0 then append(settled, one.entry) end
  if result ~= 1 then append(out, { one.entry, result }) end
end

if #settled > 0 then redis.call('XDEL', stream, unpack(settled)) end
local reply = #KEYS >= statuses_key and out
redis.pcall('SET', replies, cmsgpack.pack({ number, reply }), 'PX', 3600000)
return reply
