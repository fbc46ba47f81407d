-- Settles attempts: ends each task, or puts it back to run again. Each succeeds or fails alone.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 dead letters · 5 the last reply to this consumer's calls in one
--       lane · then for each plain attempt: status · then the keys of the values that plain ones set · then
--       for each other attempt: status, marker of its idempotency key (the stream: it has none), the keys of
--       its effects, or the key of its record
-- ARGV  1 group · 2 retention ms · 3 window ms · 4 consumer
--       5 number of this call, higher than those before
--       6 how many plain attempts set no values and have no result · 7 how many of these have one
--       8 how many plain attempts set values and have no result · 9 how many of these have one
--       10 how many values they set · 11 the plugin that ran the plain ones
--       then of the plain attempts that set no values the entries, then the enqueued-at ms, then the ms that
--       they ran, then the results
--       then the same of those that set values, then how many values each of them sets, then the values
--       then for each other attempt: what (see below) · entry · attempt · plugin · enqueued-at ms · ms that
--       it ran (empty: it did not) · task id · error (empty: none) · delay ms · how many values follow
--       · names and values · with effects: how many, and for each its kind and what this kind reads · with a
--       record: how many the task may have, the attempt, its outcome, its last lines of log
-- `what` is C (complete: the values are the result, if there is one, and other fields of the status), X
-- (complete, with effects), N (like X, and the attempt is plain but for its effects), O and Y (like C and X,
-- but only if this consumer owns the task), B (bury: the dead letter's fields), P (park: the fields for the
-- next delivery), E (park, and the delay counts from the enqueueing), or F and R (like B and P, and the
-- attempt has failed and has a record).
--
-- An attempt is plain when it is the first one of its task and completed it, the task cannot have a status
-- yet, and its host has held it for less than half a lease, so that no other host can own it. Of all effects
-- it may have only values of the state that are set and do not expire.
--
-- Gives for each attempt 1: done; 2: dropped, because its id belongs to another entry; 3: the task has ended,
-- but its track or its flow does not know it, as its status says; 0: another consumer settled or owns the
-- task, nothing was written; or the text of an error: nothing was written. It begins with
-- TQEFFECT when the effects can never be committed.
--
-- XACK is the guard of each attempt. The result of a worker that lost its lease
-- counts, if it comes first, except in a queue that limits which tasks run beside each other; only the owner
-- may bury or park. A repeated call gets the first reply. A call that was delayed on its way and arrives
-- after a later one does nothing.
take_told()
local last = redis.call('GET', KEYS[5])
last = last and cmsgpack.unpack(last)
if last and tonumber(last[1]) >= tonumber(ARGV[5]) then return last[2] end

local consumer, without, with = ARGV[4], tonumber(ARGV[6]), tonumber(ARGV[7])
local set_without, set_with, values = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local plain, setters = without + with, set_without + set_with
local settled, out = {}, {}
-- The most tasks that share an entry of events.
local MOST_TOGETHER = 20
-- With fewer plain attempts than this, it costs less to write each status.
local LEAST_COPIED = 3
-- The most bytes of a result that are copied along.
local MOST_COPIED = 1024
-- Times of starts, by their age in ms: writing a number as text is expensive.
local starts = {}
local function started(ran)
  local text = starts[ran]
  if not text then
    text = string.format('%.0f', now - ran)
    starts[ran] = text
  end
  return text
end

-- Gives what the function gives, or the text of its error.
local function try(work, ...)
  local went, result = pcall(work, ...)
  if went then return result end
  return type(result) == 'table' and result.err or tostring(result)
end

-- Gives which of some plain attempts this consumer may settle, after XACK counted fewer entries (`acked`)
-- than were named. It may settle an attempt whose entry exists, unless the entry comes after the last
-- delivered one: then Redis forgot the delivery, and will deliver the entry again. It may also settle an
-- attempt whose entry was deleted while it was pending, unless its status says that the task has ended.
local function told_apart(acked, first, count, base)
  local ours, latest = {}, last_delivered() or '0-0'
  for i = 1, count do
    local entry = ARGV[base + i]
    ours[i] = not comes_after(entry, latest) and exists(entry)
    if ours[i] then acked = acked - 1 end
  end
  for i = 1, count do
    if not ours[i] and acked > 0 then
      -- A queue without a retention only keeps for a minute that the task was cancelled.
      local status, cancelled = unpack(redis.pcall('HMGET', KEYS[5 + first + i], 'status', 'cancelled'))
      ours[i] = not cancelled and status ~= 'CANCELLED' and status ~= 'COMPLETED' and status ~= 'FAILED'
      if ours[i] then acked = acked - 1 end
    end
  end
  return ours
end

-- Completes `count` plain attempts, which come after `first` others; their arguments come after `base`
-- others. The last `results` ones have a result. `set` writes their values, and gives an error if it cannot.
--
-- One XACK is enough for all of them: no other host can have settled one. If it counts fewer than were named,
-- somebody cancelled or deleted one of them.
local function complete_plain(first, count, results, base, set)
  local acked = redis.pcall('XACK', stream, group, unpack(ARGV, base + 1, base + count))
  local refused = type(acked) == 'table' and acked.err
  local ours = not refused and acked < count and told_apart(acked, first, count, base)
  refused = refused or set and set(ours)
  -- The tasks share entries, which cost less than one for each.
  local events, before = told.events, #settled
  told.events = nil
  -- All attempts share these lists, because new ones for each of them would be expensive.
  local own = { 'enqueued_at', '', 'started_at', '' }
  local changes = {
    'enqueued_at', '', 'started_at', '', 'attempt', '1', 'plugin', ARGV[11], 'consumer', consumer,
  }
  -- Their statuses differ in few fields, and a copy of one costs half as much as to write all of them.
  local model = tonumber(retention) > 0 and count >= LEAST_COPIED and { changes = own } or nil
  local i = 1
  -- Completes those that are left, and ends early with an error for attempt `i`.
  local function complete_rest()
    while i <= count do
      local at = base + i
      if refused or (ours and not ours[i]) then
        out[first + i] = refused or 0
      else
        own[2], own[4] = ARGV[at + count], started(ARGV[at + 2 * count])
        changes[2], changes[4] = own[2], own[4]
        if i > count - results then
          own[5], own[6] = 'result', ARGV[at + 2 * count + results]
          changes[11], changes[12] = own[5], own[6]
        end
        local status, entry = KEYS[5 + first + i], ARGV[at]
        settled[#settled + 1] = entry
        out[first + i] =
          end_task(status, stream, false, 'COMPLETED', changes, entry, nil, true, nil, model)
        -- A copy begins with the result of its model, so one with a large result costs more than it saves.
        -- Nothing is copied from a status that something else had written into before.
        if model and not model.status and #(own[6] or '') <= MOST_COPIED
          and redis.pcall('HLEN', status) == 2 + #changes / 2 then
          model.status = status
        end
      end
      i = i + 1
    end
  end
  -- Each attempt fails alone.
  while i <= count do
    local failure = try(complete_rest)
    if failure then out[first + i], i = failure, i + 1 end
  end
  told.events = events
  while events and before < #settled do
    local from = before + 1
    before = math.min(before + MOST_TOGETHER, #settled)
    add_event('ids', table.concat(settled, ' ', from, before), 'status', 'COMPLETED', 'attempt', '1')
  end
end

-- Completes the plain attempts that set values.
local function complete_setters()
  local base = 11 + 3 * plain + with
  complete_plain(plain, setters, set_with, base, function(ours)
    local counts = base + 3 * setters + set_with
    local key, value, writes, size = 5 + plain + setters, counts + setters, {}, 0
    -- The attempt whose value is next, and how many more values it has.
    local attempt, more = 0, 0
    for i = 1, values do
      while ours and more == 0 do
        attempt = attempt + 1
        more = tonumber(ARGV[counts + attempt])
      end
      more = more - 1
      if not ours or ours[attempt] then
        writes[size + 1], writes[size + 2] = KEYS[key + i], ARGV[value + i]
        size = size + 2
      end
    end
    local written = size > 0 and redis.pcall('MSET', unpack(writes))
    return type(written) == 'table' and written.err
  end)
end

-- The names of attempts with effects, and of those with a record.
local has_effects = { X = true, N = true, Y = true }
local has_record = { F = true, R = true }

-- The next argument of an attempt that is not plain.
local at = 12 + 3 * (plain + setters) + with + set_with + setters + values

-- How long (ms) the records of a task are kept after its last failure and the delay that follows: 30 days.
local RECORDS_LIVE = 2592000000
-- The most records that a queue keeps of a task.
local MOST_RECORDS = 100

-- Makes the function that settles the next attempt that is not plain. Calls without such attempts, which are
-- most of them, do without it and its parts.
local function make_settle_next()
  -- The next key, and the number of the attempt before.
  local key, attempts = 6 + plain + setters + values, plain + setters

  local function next_key()
    key = key + 1
    return KEYS[key - 1]
  end

  local function next_value()
    at = at + 1
    return ARGV[at - 1]
  end

  local function next_list()
    local list = {}
    for i = 1, tonumber(next_value()) do list[i] = next_value() end
    return list
  end

  -- An entry that was deleted is not pending. heartbeat.lua noted that it still belongs to this consumer.
  local function is_kept(status, entry)
    local _, known_entry, _, runner, kept_until = place_of(status)
    return kept_until > 0 and runner == consumer and known_entry == entry
  end

  -- The kinds of effects. For each: how it is read, why it cannot be committed (a text, or nil), how it is
  -- committed, and how it is taken back if it left something before. They are made at their first use.
  local effects
  local function make_effects()
    effects = {}

    -- Sets a value of the state.
    effects.S = {
      read = function() return { key = next_key(), value = next_value(), ttl = next_value() } end,
      refusal = function() end,
      commit = function(one)
        if one.ttl == '0' then
          redis.call('SET', one.key, one.value)
        else
          redis.call('SET', one.key, one.value, 'PX', one.ttl)
        end
      end,
    }

    -- Deletes a value of the state.
    effects.D = {
      read = function() return { key = next_key() } end,
      refusal = function() end,
      commit = function(one) redis.call('DEL', one.key) end,
    }

    -- Adds to a counter of the state. Of numbers with at most 18 digits no sum overflows.
    effects.A = {
      read = function() return { key = next_key(), delta = next_value() } end,
      refusal = function(one)
        local value = redis.pcall('GET', one.key)
        -- INCRBY refuses leading zeros.
        local digits = value == '0' and value
          or type(value) == 'string' and string.match(value, '^%-?([1-9]%d*)$')
        if value and not (digits and #digits <= 18) then
          return 'the counter ' .. one.key .. ' holds no whole number of at most 18 digits'
        end
      end,
      commit = function(one) redis.call('INCRBY', one.key, one.delta) end,
    }

    -- Deletes a record (1), sets its fields, and its time to live in ms (-1: as before, 0: none).
    effects.H = {
      read = function()
        return { key = next_key(), deletes = next_value(), ttl = next_value(), fields = next_list() }
      end,
      refusal = function(one)
        local bad = wrong_type(one.key, 'hash')
        return bad and bad.err
      end,
      commit = function(one)
        if one.deletes == '1' then redis.call('UNLINK', one.key) end
        if #one.fields > 0 then redis.call('HSET', one.key, unpack(one.fields)) end
        if one.ttl == '0' then
          redis.call('PERSIST', one.key)
        elseif one.ttl ~= '-1' then
          redis.call('PEXPIRE', one.key, one.ttl)
        end
      end,
    }

    -- Enqueues a task.
    effects.T = {
      read = function()
        return {
          stream = next_key(), delayed = next_key(), parked = next_key(), status = next_key(),
          marker = next_key(), id = next_value(), delay = next_value(), retention = next_value(),
          fields = next_list(),
        }
      end,
      refusal = function(one)
        local bad = wrong_type(one.stream, 'stream', one.delayed, 'zset', one.parked, 'hash')
        return bad and bad.err
      end,
      commit = enqueue,
    }

    -- Starts a flow, whose children are staged. The task that joins it is held by the flow.
    effects.F = {
      read = function()
        return {
          about = next_key(), children = next_key(), stream = next_key(), delayed = next_key(),
          parked = next_key(), dead = next_key(), status = next_key(), marker = next_key(),
          id = next_value(), total = next_value(), group = next_value(), delay = next_value(),
          retention = next_value(), fields = next_list(),
        }
      end,
      refusal = function(one)
        local bad = wrong_type(one.stream, 'stream', one.delayed, 'zset', one.parked, 'hash')
        if bad then return bad.err end
        if redis.call('LLEN', one.children) ~= tonumber(one.total) then
          return 'the children of the flow are not complete any more'
        end
      end,
      commit = function(one)
        redis.call('PERSIST', one.children)
        redis.call('HSET', one.about, 'total', one.total, 'left', one.total, 'stream', one.stream,
          'delayed', one.delayed, 'parked', one.parked, 'dead', one.dead, 'group', one.group,
          'status', one.status, 'marker', one.marker, 'id', one.id, 'delay', one.delay,
          'retention', one.retention, 'fields', cmsgpack.pack(one.fields))
        redis.call('HSET', one.status, 'status', 'PENDING', 'attempt', 1, 'enqueued_at', now, 'enqueued', '1',
          'joins', one.about)
        -- promote.lua releases the children.
        redis.call('ZADD', one.delayed, now, 'flow/' .. one.id)
        redis.call('HSET', one.parked, 'flow/' .. one.id, cmsgpack.pack({ 'tq-joins', one.about }))
      end,
      take_back = function(one) redis.call('UNLINK', one.children) end,
    }
  end

  local function next_effects()
    if not effects then make_effects() end
    local all = {}
    for i = 1, tonumber(next_value()) do
      local kind = effects[next_value()]
      all[i] = kind.read()
      all[i].kind = kind
    end
    return all
  end

  -- Why the effects of an attempt cannot be committed, or nil.
  local function refusal_of(all)
    for _, one in ipairs(all) do
      local why = one.kind.refusal(one)
      if why then return 'TQEFFECT ' .. why end
    end
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
  local function park(status, id, entry, attempt, enqueued_at, message, due, fields, mark)
    local place, where = put(here, fields, due, entry)
    -- The status speaks of a cancelled run under this id until that is stopped.
    if mark == 'elsewhere' then return end
    forget_end(status, 'progress', 'note', 'entry', 'parked_as', 'deleted')
    set_status(status, 'status', 'PENDING', 'attempt', attempt, 'enqueued_at', enqueued_at, 'due_at', due,
      place, where)
    if message ~= '' then redis.call('HSET', status, 'error', message) end
    note(id, 'PENDING', 'attempt', attempt, 'due_at', due)
  end

  local function next_record()
    return {
      key = next_key(), most = next_value(), attempt = next_value(), outcome = next_value(),
      log = next_value(),
    }
  end

  -- Keeps the record of a failed attempt as one of the last ones of its task. The status names their key, and
  -- `end_task` lets it expire with the status. If the status gets lost, the key expires by itself.
  local function keep(record, status, plugin, ran, message, delay)
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
      attempt = record.attempt, finished_at = now_text, ran = ran, plugin = plugin, consumer = consumer,
      outcome = record.outcome, error = message, log = record.log,
    }))
    -- The queue may have kept more of them before.
    local old = {}
    for n = math.max(1, number - MOST_RECORDS), number - record.most do append(old, n) end
    if #old > 0 then redis.call('HDEL', record.key, unpack(old)) end
    redis.call('PEXPIRE', record.key, RECORDS_LIVE + delay)
    set_status(status, 'attempts', record.key)
  end

  -- Leaves the task of another entry as it is, and its track too if this entry has no turn there. `letter` is
  -- the content of a dead letter, if this entry is one for itself.
  local function give_up(id, entry, letter)
    if letter then redis.call('XADD', KEYS[4], '*', unpack(letter)) end
    -- The entry is gone, so an error must not undo what was said of it.
    if turns.limit then failure_of(tracks().free, id, entry) end
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
  local function settle(
    status, marker, fields, all, record, what, entry, attempt, plugin, enqueued_at, ran, id, message, delay
  )
    local completes, is_new = what == 'C' or what == 'O' or all, what == 'N'
    local buries = what == 'B' or what == 'F'
    local is_free = completes and what ~= 'O' and what ~= 'Y'
    local mark, dropped = not is_new and mark_of(status, entry), nil
    if all then
      -- The checks come before the first write, and so does the question who owns the entry.
      local is_ours = is_free and pending_of(entry) or owned(entry, consumer)
      if not is_ours and not is_kept(status, entry) then return 0 end
      if mark == 'here' then dropped, all = all, {} end
      local refusal = refusal_of(all)
      if refusal then return refusal end
    end
    local bad = to_wait_for(buries and wrong_type(KEYS[4], 'stream')
      or not completes and not buries and wrong_type(KEYS[2], 'zset', KEYS[3], 'hash')
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
      for _, one in ipairs(dropped or {}) do
        if one.kind.take_back then one.kind.take_back(one) end
      end
      return end_task(status, marker, id, 'CANCELLED', {}, entry)
    end
    if record then keep(record, status, plugin, ran, message, delay) end
    if not completes and not buries then
      local due = (what == 'E' and enqueued_at or now) + delay
      park(status, id, entry, attempt, enqueued_at, message, due, fields, mark)
      return 1
    end
    -- Every status but that of a plain task names the entry, so that two tasks with one id are not confused.
    local changes = {
      'attempt', attempt, 'plugin', plugin, 'consumer', consumer, 'enqueued_at', enqueued_at, 'entry', entry,
    }
    if ran ~= '' then append(changes, 'started_at', started(ran)) end
    if completes then
      append(changes, unpack(fields))
      for _, one in ipairs(all or {}) do one.kind.commit(one) end
      return end_task(status, marker, id, 'COMPLETED', changes, entry, nil, is_new)
    end
    append(changes, 'error', message)
    return end_task(status, marker, id, 'FAILED', changes, entry, letter_of(fields))
  end

  -- Settles the next attempt that is not plain.
  local function settle_next()
    local status, marker, args = next_key(), next_key(), { unpack(ARGV, at, at + 8) }
    at = at + 9
    local fields = next_list()
    local all = has_effects[args[1]] and next_effects()
    local record = has_record[args[1]] and next_record()
    local result = try(settle, status, marker, fields, all, record, unpack(args))
    if type(result) == 'number' and result > 0 then append(settled, args[2]) end
    attempts = attempts + 1
    out[attempts] = result
  end

  return settle_next
end

if plain > 0 then complete_plain(0, plain, with, 11) end
if setters > 0 then complete_setters() end
local settle_next = at <= #ARGV and make_settle_next()
while at <= #ARGV do settle_next() end

if #settled > 0 then redis.call('XDEL', stream, unpack(settled)) end
redis.pcall('SET', KEYS[5], cmsgpack.pack({ ARGV[5], out }), 'PX', 3600000)
return out
