-- Marks claimed tasks as PROCESSING if this consumer still owns them, and takes their idempotency keys.
-- Some deliveries do not prove that a task may run: those tasks wait for this reply before they start. For
-- a long task the call comes later and makes its status visible to clients.
--
-- KEYS  stream, delayed, parked; each task: status, marker, holder
-- ARGV  group, retention, window, consumer, plugin, lease, max_crashes; each task: entry, attempt,
--       enqueued_at, id, held (ms since it was claimed), crashes, alone (1: it runs alone in its host), fence
--       (of its delivery), again (1: another host may have run it under this entry)
-- Returns for each task one of
--   1: this consumer owns it: run it
--   { 1, fence }: this consumer owns it: run it with this fence, which is higher than the given one
--   0: another consumer owns it: drop it
--   2: it was cancelled while it waited; this call settled it
--   3: another task has its key or its id; this call settled it
--   4: the stream or the entry was deleted, and nothing can deliver it again; its status says so
--   5: its host died while it ran alone, and it has no crashes left: bury it
--   6: another run under its id was cancelled and is not stopped yet; this call has delayed the task by a
--      second: drop it
--   the id of the task that has its key: nothing was written; call again with the status of that task
--   { 0, the text of an error }: it cannot begin now
--
-- In a queue with limits (`turns` of lib.lua), a task that is delivered again begins with a whole lease,
-- since a part of the old one is over. JUSTID keeps the delivery count, which counts crashes.
--
-- While a task runs alone, its status holds its entry and its number of crashes. A higher number later means
-- that its host died while nothing else ran there. The marker holds the id of the first task, so a task that
-- lost its host is not its own duplicate. The status holds the fence of the last delivery, because Redis does
-- not count a takeover from an owner that lives. A child does not end as long as its flow cannot note the
-- end. Safe to run again.
begin_call()
take_told()
local out = {}

-- Ends a task that is not to run. `key` is the key that holds its idempotency key (the stream: it has none).
local function cancel(key, changes)
  local bad = to_wait_for(join_refusal(status))
  if bad then error(bad) end
  append(changes, 'entry', entry)
  end_task({
    status = status, marker = key, id = id, how = 'CANCELLED', changes = changes, source = drop(entry),
  })
end

-- Lets a task wait for a second among the delayed ones.
local function put_off()
  local misfit, fields = wrong_type(delayed, 'zset', parked, 'hash'), fields_in(stream, entry)
  if misfit then error(misfit) end
  if not fields then return end
  keep_trusted(fields, status, id, entry)
  keep_origin(fields, id, entry)
  drop(entry)
  put(here, fields, now + 1000, entry)
  if turns.limit then try(tracks.free, id, entry) end
end

local function begin()
  if not owned(entry, consumer) then
    -- After its lease, another host may have ended the task so long ago that the status has expired.
    local may_be_lost = redis.call('EXISTS', status) == 1 or tonumber(held) < tonumber(lease)
    return may_be_lost and note_lost(status, marker, id, entry, consumer) and 4 or 0
  end
  local mark = mark_of(status, entry)
  if mark == 'here' then
    cancel(marker, {})
    return 2
  end
  if mark == 'elsewhere' then
    put_off()
    return 6
  end
  if is_elsewhere(status, entry, id) then
    drop(entry)
    if turns.limit then try(tracks.free, id, entry) end
    return 3
  end
  local alone_before, last, known_entry = unpack(redis.pcall('HMGET', status, 'alone', 'fence', 'entry'))
  local entry_before, crashes_before = string.match(tostring(alone_before), '^(%S+) (%d+)$')
  local has_died = entry_before == entry and tonumber(crashes) > tonumber(crashes_before)
  if has_died and tonumber(crashes) >= tonumber(max_crashes) then return 5 end
  local first = first_task(marker)
  if first and first ~= id then
    if holder == stream then return first end
    if not end_if_gone(holder, marker, first) then
      cancel(stream, {
        'duplicate_of', first, 'error', 'duplicate of ' .. first, 'enqueued_at', enqueued_at,
      })
      return 3
    end
  end
  -- From now on the status names the entry, even if a producer wrote it. `produced` says that one did.
  local is_produced = known_entry ~= entry and (id == entry or not is_of_host(status, id, entry))
  -- XCLAIM would take a deleted entry from the pending ones. The heartbeat finds it.
  if again == '1' and turns.are_limited and exists(entry) then
    redis.call('XCLAIM', stream, group, consumer, 0, entry, 'JUSTID')
  end
  redis.call('PERSIST', status)
  set_status(status, 'status', 'PROCESSING', 'attempt', attempt, 'plugin', plugin, 'consumer', consumer,
    'enqueued_at', enqueued_at, 'started_at', now - held, 'entry', entry)
  redis.call('HDEL', status, 'progress', 'note', 'due_at', 'finished_at', 'result', 'parked_as',
    'dead', 'duplicate_of', 'alone', 'cancel', 'stops', 'cancelled')
  if alone == '1' then redis.call('HSET', status, 'alone', entry .. ' ' .. crashes) end
  if is_produced then redis.call('HSET', status, 'produced', entry) end
  -- A second entry with its id may have been given the turn. It does not run, and loses the turn.
  local track, under
  if turns.limit then track, under = tracks.turn_of(id) end
  if track and under ~= entry then tracks.give(track, id, entry) end
  local given = tonumber(fence)
  last = tonumber(last) or 0
  if again == '1' and last >= given then given = last + 1 end
  if given > 1 and given > last then redis.call('HSET', status, 'fence', given) end
  if marker ~= stream then
    redis.call('SET', marker, id)
    redis.call('HSET', status, 'marker', marker)
  end
  return given > tonumber(fence) and { 1, given } or 1
end

each_task(function(i)
  local went, answer = pcall(begin)
  out[i] = went and answer or { 0, text_of(answer) }
end)
return out
