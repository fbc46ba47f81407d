-- Cancels a task that has not ended, wherever it is.
--
-- KEYS  stream, delayed, parked, status, marker, flow (that the task joins, if it joins one), children (of
--       this flow that are not released), kept (where the task is kept as a dead letter; the stream: nowhere)
-- ARGV  group, retention, window, id, listed_entry (in which it was found; empty: not looked for),
--       only_waiting (1: only if it waits; empty: also if it runs), listed_member (of the delayed tasks in
--       which it was found; empty: not looked for), in_advance (1: a task that is nowhere may still come from
--       a list; empty: it is unknown), lives (how long all that the job keeps lives, in ms; empty: it is not
--       kept), fields... (of the dead letter, without the time)
-- Returns the status that the task had before; it is empty if the task is not known:
--   CANCELLED, COMPLETED, FAILED: the task had ended, and stays as it is
--   PROCESSING: it ran, and was cancelled; or it was left, because only a task that waits was to be
--     cancelled, or one that is to be kept was not where it was found
--   PENDING: it waited, and was cancelled; or a second entry with its id was deleted
--
-- No further child of the flow is released, even if the task is dead because one child died: the others go
-- on. Other calls cancel the children that were released.
--
-- This script acknowledges and deletes a running task; its host stops the handler at the next heartbeat. In a
-- queue with limits (`turns` of lib.lua), it marks a running task instead, and the mark names the entry: the
-- task keeps its place and its turn until its host has stopped the handler and settles it. If the entry of a
-- waiting task is not known (an older host promoted it, or it comes from a list later), the task is marked,
-- too: begin.lua drops it at its delivery, or settle.lua finds the mark.
begin_call()
take_told()
local letter = { unpack(ARGV, fields_at) }
local bad = wrong_type(stream, 'stream', delayed, 'zset', parked, 'hash', status, 'hash', flow, 'hash',
  kept, 'stream')
  or join_refusal(status)
if bad then return bad end
local state, known_entry, member, _, kept_until = place_of(status)

-- Whether an entry exists, and is one of this task: another task may have an id that looks like an entry's.
local function is_its(entry)
  local its = is_entry_id(entry) and fields_in(stream, entry)
  return its and (value_in(its, 'tq-id') or entry) == id
end

-- Whether the task runs, or was delivered a moment ago.
local function is_taken()
  for _, entry in ipairs({ known_entry or '', id, listed_entry }) do
    if is_its(entry) and pending_of(entry) then return true end
  end
  return state == 'PROCESSING'
end

-- Drops an entry that waits or runs. Returns its fields as `drop` does.
local function drop_entry(entry)
  -- If an entry that waits is deleted, Redis does not know any more how many entries the group has read
  -- (stand.lua). SETID lets it count again.
  local last = not pending_of(entry) and last_delivered()
  local fields = drop(entry)
  if last then redis.call('XGROUP', 'SETID', stream, group, last) end
  return fields
end

-- Removes a task from the delayed ones. Returns whether it was there, and its fields.
local function take_delayed(one)
  if one == '' or redis.call('ZREM', delayed, one) == 0 then return false end
  local fields = parked_fields(redis.call('HGET', parked, one) or '')
  redis.call('HDEL', parked, one)
  if turns.limit then redis.call('ZREM', turns.tracks, one) end
  return true, fields
end

-- The letter without the fields that only hosts write, if a producer wrote them into the entry. Fields of a
-- delayed task need no such look, because a script parked them.
local function trusted_letter()
  local notes = { ['tq-queue'] = 1, ['tq-reason'] = 1, ['tq-error'] = 1, ['tq-attempts'] = 1 }
  local written, noted = {}, {}
  for i = 1, #letter, 2 do
    append(notes[letter[i]] and noted or written, letter[i], letter[i + 1])
  end
  keep_trusted(written, status, id, listed_entry)
  append(written, unpack(noted))
  return written
end

-- Keeps the task as a dead letter of the job, if the call says so.
local function keep_task()
  if lives == '' then return end
  if listed_member == '' then letter = trusted_letter() end
  if not value_in(letter, 'tq-enqueued-at') then
    append(letter, 'tq-enqueued-at', string.match(listed_entry, '^(%d+)%-') or now_text)
  end
  append(letter, 'tq-failed-at', now_text)
  keep(kept, lives, letter)
end

-- A producer that sends an id again makes a second entry, which a list finds beside the place that the status
-- names. If the first task is dead, the second one is a task of its own. Otherwise the second one is deleted
-- and nobody is told, because the end of a task is told once.
local is_known = state and (not is_live(state) or has_place(known_entry, member, kept_until))
local is_second_entry = is_known and listed_entry ~= known_entry and is_its(listed_entry)
  and not pending_of(listed_entry)
local is_second_delayed = is_known and listed_member ~= '' and listed_member ~= member
  and redis.call('ZSCORE', delayed, listed_member)
if state ~= 'FAILED' and (is_second_entry or is_second_delayed) then
  -- A second one of a task that lives or has completed would never have run, so it is not kept.
  if not is_live(state) and state ~= 'COMPLETED' then keep_task() end
  if is_second_entry then drop_entry(listed_entry) else take_delayed(listed_member) end
  return 'PENDING'
end
if only_waiting == '1' and is_taken() then return 'PROCESSING' end
-- The task is kept as it was found, so nothing else is taken.
if lives ~= '' and (not state or is_live(state)) then
  local is_there = listed_member ~= '' and redis.call('ZSCORE', delayed, listed_member)
    or listed_member == '' and is_its(listed_entry)
  local has_moved = (known_entry or listed_entry) ~= listed_entry
    or (member or listed_member) ~= listed_member
  if not is_there or has_moved then return 'PROCESSING' end
end
local has_flow = redis.call('HEXISTS', flow, 'left') == 1
if has_flow then redis.call('UNLINK', children) end
if state and not is_live(state) and not is_second_entry and not is_second_delayed then return state end

-- Takes the task out of its place. Returns true and the task's fields, if they are needed; or false. If the
-- task is to be marked because it runs, the third result is its entry.
local function take_task()
  for _, entry in ipairs({ known_entry or '', id, listed_entry }) do
    if is_its(entry) then
      if turns.are_limited and pending_of(entry) then return false, nil, entry end
      return true, drop_entry(entry)
    end
  end
  for _, one in ipairs({ member or '', listed_member }) do
    local was_there, fields = take_delayed(one)
    if was_there then return true, fields end
  end
  -- A task that is held by its flow takes the flow with it.
  if has_flow and not known_entry and state then
    local fields = cmsgpack.unpack(redis.call('HGET', flow, 'fields'))
    redis.call('DEL', flow)
    return true, fields
  end
  -- Somebody deleted its entry, so no script will find the task there. A host that runs it learns of its end.
  if known_entry and not member and not exists(known_entry) then
    if turns.are_limited and pending_of(known_entry) then return false, nil, known_entry end
    redis.call('XACK', stream, group, known_entry)
    return true
  end
  return false
end

local found, fields, runs = take_task()
turns.are_kept = runs
if found then keep_task() end
-- Where no statuses are kept, the flow knows that its task is dead.
if not found and not runs and not state then
  if redis.pcall('HGET', status, 'cancelled') == '1' then return 'CANCELLED' end
  if redis.call('HGET', flow, 'letter') then return 'FAILED' end
  if in_advance ~= '1' then return '' end
end
redis.call('HDEL', status, 'entry')
-- If the task is only marked, the script that finds its entry later tells its end.
end_task({
  status = status, marker = marker, id = id, how = 'CANCELLED', changes = {}, source = fields,
  is_untold = not found,
})
if not found then
  -- The mark lives for at least a day. No delivery that comes later than that needs it.
  redis.call('HSET', status, 'status', 'CANCELLED', 'cancel', '1')
  if runs then redis.call('HSET', status, 'stops', runs) end
  redis.call('PEXPIRE', status, math.max(retention, 86400000))
elseif tonumber(retention) == 0 and has_flow then
  -- A repeated call finds the status, and goes on with the children of the task's flow.
  redis.call('PEXPIRE', status, 86400000)
end
return is_live(state) and state or 'PENDING'
