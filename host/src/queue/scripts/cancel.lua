-- Cancels a task that has not ended, wherever it is.
--
-- KEYS  stream, delayed, parked, status, marker, flow (that the task joins, if it joins one), children (of
--       this flow that are not released), kept (where the task is kept as a dead letter; the stream: nowhere)
-- ARGV  group, retention, window, id, listed_entry (in which it was found; empty: not looked for),
--       only_waiting (1: only if it waits; empty: also if it runs), listed_member (of the delayed tasks in
--       which it was found; empty: not looked for), in_advance (1: a task that is nowhere may still come from
--       a list; empty: it is unknown), lives (how long all that the job keeps lives, in ms; empty: it is not
--       kept), fields... (of the dead letter, without the time)
-- Returns the status that the task had before, or an empty one when it is not known. CANCELLED, COMPLETED and
--   FAILED stay as they are; so does a task that runs where only one that waits is meant (PROCESSING), and
--   one that is to be kept and is not where it was found. Of a second entry with the id of another task, it
--   gives PENDING.
--
-- No further child of the flow is released. The children that were released are cancelled by other calls.
-- That holds also when the task is dead because one of them died, since the others go on.
-- This script acknowledges and deletes a running task; its host stops the handler at the next heartbeat.
-- Where few tasks may run beside each other, it marks a running task instead: the task keeps its place and
-- its turn until its host has stopped the handler and settles it, and the mark names its entry. If the entry
-- of a waiting task is not known (an older host promoted it, or it comes from a list later), the task is
-- marked too: begin.lua drops it at its delivery, or settle.lua honours the mark.
begin_call()
take_told()
local letter = { unpack(ARGV, fields_at) }
local bad = wrong_type(stream, 'stream', delayed, 'zset', parked, 'hash', status, 'hash', flow, 'hash',
  kept, 'stream')
  or join_refusal(status)
if bad then return bad end
local is, known_entry, member, _, kept_until = place_of(status)

-- Whether an entry exists, and is one of this task: another task may have an id that looks like an entry's.
local function is_its(entry)
  local there = string.match(entry, '^%d+%-%d+$') and redis.call('XRANGE', stream, entry, entry)[1]
  return there and (value_in(there[2], 'tq-id') or entry) == id
end

-- Whether the task runs, or was delivered a moment ago.
local function is_taken()
  for _, entry in ipairs({ known_entry or '', id, listed_entry }) do
    if is_its(entry) and pending_of(entry) then return true end
  end
  return is == 'PROCESSING'
end

-- Drops an entry that waits or runs, and gives its fields if somebody is told of them.
local function drop_entry(entry)
  -- Redis counts what a group has read, and would miss an entry there that waits (stand.lua).
  local last = not pending_of(entry) and last_delivered()
  local fields = drop(entry)
  if last then redis.call('XGROUP', 'SETID', stream, group, last) end
  return fields
end

-- Takes a task from among the delayed ones. Returns whether it was there, and its fields.
local function take_delayed(one)
  if redis.call('ZREM', delayed, one) == 0 then return false end
  local fields = parked_fields(redis.call('HGET', parked, one) or '')
  redis.call('HDEL', parked, one)
  if turns.limit then redis.call('ZREM', turns.tracks, one) end
  return true, fields
end

-- The letter without what a producer wrote into an entry as if it were a host. What is parked was looked at.
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

-- Keeps the task in the step that takes it away.
local function keep_task()
  if lives == '' then return end
  if listed_member == '' then letter = trusted_letter() end
  if not value_in(letter, 'tq-enqueued-at') then
    append(letter, 'tq-enqueued-at', string.match(listed_entry, '^(%d+)%-') or now_text)
  end
  append(letter, 'tq-failed-at', now_text)
  keep(kept, lives, letter)
end

-- A producer that sends an id again makes a second entry, which a list finds beside the place that the
-- status names. Behind a dead task it is a new one. Otherwise nobody is told: a task's end is told once.
local is_known = is and (not is_live(is) or has_place(known_entry, member, kept_until))
local is_second_entry = is_known and listed_entry ~= known_entry and is_its(listed_entry)
  and not pending_of(listed_entry)
local is_second_delayed = is_known and listed_member ~= '' and listed_member ~= member
  and redis.call('ZSCORE', delayed, listed_member)
if is ~= 'FAILED' and (is_second_entry or is_second_delayed) then
  -- It would never have run beside a task that lives or has completed.
  if not is_live(is) and is ~= 'COMPLETED' then keep_task() end
  if is_second_entry then drop_entry(listed_entry) else take_delayed(listed_member) end
  return 'PENDING'
end
if only_waiting == '1' and is_taken() then return 'PROCESSING' end
-- The task is kept as it was found, so nothing else is taken.
if lives ~= '' and (not is or is_live(is)) then
  local is_there = listed_member ~= '' and redis.call('ZSCORE', delayed, listed_member)
    or listed_member == '' and is_its(listed_entry)
  local has_moved = (known_entry or listed_entry) ~= listed_entry
    or (member or listed_member) ~= listed_member
  if not is_there or has_moved then return 'PROCESSING' end
end
local has_flow = redis.call('HEXISTS', flow, 'left') == 1
if has_flow then redis.call('UNLINK', children) end
if is and not is_live(is) and not is_second_entry and not is_second_delayed then return is end

local found, runs, fields = false, nil, nil
for _, entry in ipairs({ known_entry or '', id, listed_entry }) do
  if not found and not runs and is_its(entry) then
    runs = turns.are_limited and pending_of(entry) and entry
    if not runs then
      fields = drop_entry(entry)
      found = true
    end
  end
end
for _, one in ipairs({ member or '', listed_member }) do
  if not found and not runs and one ~= '' then found, fields = take_delayed(one) end
end
-- A task that is held by its flow takes the flow with it.
if has_flow and not found and not runs and not known_entry and is then
  fields = cmsgpack.unpack(redis.call('HGET', flow, 'fields'))
  redis.call('DEL', flow)
  found = true
end
-- Somebody deleted its entry, so no script will find it there. A host that runs it learns of its end.
if known_entry and not member and not found and not runs and not exists(known_entry) then
  if turns.are_limited and pending_of(known_entry) then
    runs = known_entry
  else
    redis.call('XACK', stream, group, known_entry)
    found = true
  end
end
turns.are_kept = runs
if found then keep_task() end
-- Where no statuses are kept, the flow knows that its task is dead.
if not found and not runs and not is then
  if redis.pcall('HGET', status, 'cancelled') == '1' then return 'CANCELLED' end
  if redis.call('HGET', flow, 'letter') then return 'FAILED' end
  if in_advance ~= '1' then return '' end
end
redis.call('HDEL', status, 'entry')
-- The end of a task that is only marked is told by the script that finds its entry later.
end_task({
  status = status, marker = marker, id = id, how = 'CANCELLED', changes = {}, source = fields,
  is_untold = not found,
})
if not found then
  -- The mark lives for at least a day. It is of no use to a later delivery, or to a task that never existed.
  redis.call('HSET', status, 'status', 'CANCELLED', 'cancel', '1')
  if runs then redis.call('HSET', status, 'stops', runs) end
  redis.call('PEXPIRE', status, math.max(retention, 86400000))
elseif tonumber(retention) == 0 and has_flow then
  -- A call that is repeated goes on with what is below the task in its flow.
  redis.call('PEXPIRE', status, 86400000)
end
return is_live(is) and is or 'PENDING'
