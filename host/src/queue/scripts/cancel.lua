-- Cancels a task that has not ended, wherever it is.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 status · 5 marker of the idempotency key (the stream: none)
--       6 the flow that the task joins, if it joins one · 7 the children of this flow that are not released
-- ARGV  1 group · 2 retention ms · 3 window ms · 4 task id · 5 entry in which it was found (empty: not
--       looked for) · 6 `1`: only if it waits (empty: also if it runs) · 7 member of the delayed tasks in
--       which it was found (empty: not looked for)
-- Gives the status that the task had before, or an empty one when it is not known. CANCELLED, COMPLETED and
--   FAILED stay as they are; so does a task that runs where only one that waits is meant (PROCESSING). Of a
--   second entry with the id of another task, it gives PENDING.
--
-- No further child of the flow is released. The children that were released are cancelled by other calls.
-- That holds also when the task is dead because one of them died, since the others go on.
-- This script acknowledges and deletes a running task; its host stops the handler at the next heartbeat.
-- Where few tasks may run beside each other, it marks a running task instead: the task keeps its place and
-- its turn until its host has stopped the handler and settles it, and the mark names its entry. If the entry
-- of a waiting task is not known (an older host promoted it), the task is marked too: begin.lua drops it at
-- its delivery, or settle.lua honours the mark.
begin_call()
take_told()
local bad = wrong_type(stream, 'stream', KEYS[2], 'zset', KEYS[3], 'hash', KEYS[4], 'hash',
  KEYS[6], 'hash') or join_refusal(KEYS[4])
if bad then return bad end
local status, known_entry, member, _, kept_until = place_of(KEYS[4])

-- Whether an entry exists, and is one of this task: another task may have an id that looks like an entry's.
local function is_its(entry)
  local there = string.match(entry, '^%d+%-%d+$') and redis.call('XRANGE', stream, entry, entry)[1]
  return there and (value_in(there[2], 'tq-id') or entry) == ARGV[4]
end

-- Whether the task runs, or was delivered a moment ago.
local function is_taken()
  for _, entry in ipairs({ known_entry or '', ARGV[4], ARGV[5] }) do
    if is_its(entry) and pending_of(entry) then return true end
  end
  return status == 'PROCESSING'
end

-- Drops an entry that waits or runs, and gives its fields if somebody is told of them.
local function drop_entry(entry)
  -- Redis counts what a group has read, and would miss an entry there that waits (stand.lua).
  local last = not pending_of(entry) and last_delivered()
  local fields = drop(entry)
  if last then redis.call('XGROUP', 'SETID', stream, group, last) end
  return fields
end

-- Takes a task from among the delayed ones. Gives whether it was there, and its fields.
local function take_delayed(delayed)
  if redis.call('ZREM', KEYS[2], delayed) == 0 then return false end
  local fields = parked_fields(redis.call('HGET', KEYS[3], delayed) or '')
  redis.call('HDEL', KEYS[3], delayed)
  if turns.limit then redis.call('ZREM', turns.tracks, delayed) end
  return true, fields
end

-- A producer that sends an id again makes a second entry, which a list finds beside the place that the
-- status names. Behind a dead task it is a new one. Otherwise nobody is told: a task's end is told once.
local is_known = status and (not is_live(status) or has_place(known_entry, member, kept_until))
local is_second_entry = is_known and ARGV[5] ~= known_entry and is_its(ARGV[5]) and not pending_of(ARGV[5])
local is_second_delayed = is_known and ARGV[7] ~= '' and ARGV[7] ~= member
  and redis.call('ZSCORE', KEYS[2], ARGV[7])
if status ~= 'FAILED' and (is_second_entry or is_second_delayed) then
  if is_second_entry then drop_entry(ARGV[5]) else take_delayed(ARGV[7]) end
  return 'PENDING'
end
if ARGV[6] == '1' and is_taken() then return 'PROCESSING' end
local flow = KEYS[6]
local has_flow = redis.call('HEXISTS', flow, 'left') == 1
if has_flow then redis.call('UNLINK', KEYS[7]) end
if status and not is_live(status) and not is_second_entry and not is_second_delayed then return status end

local found, runs, fields = false, nil, nil
for _, entry in ipairs({ known_entry or '', ARGV[4], ARGV[5] }) do
  if not found and not runs and is_its(entry) then
    runs = turns.are_limited and pending_of(entry) and entry
    if not runs then
      fields = drop_entry(entry)
      found = true
    end
  end
end
for _, delayed in ipairs({ member or '', ARGV[7] }) do
  if not found and not runs and delayed ~= '' then found, fields = take_delayed(delayed) end
end
-- A task that is held by its flow takes the flow with it.
if has_flow and not found and not runs and not known_entry and status then
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
-- Where no statuses are kept, the flow knows that its task is dead.
if not found and not runs and not status then
  if redis.pcall('HGET', KEYS[4], 'cancelled') == '1' then return 'CANCELLED' end
  return redis.call('HGET', flow, 'letter') and 'FAILED' or ''
end
redis.call('HDEL', KEYS[4], 'entry')
-- The end of a task that is only marked is told by the script that finds its entry later.
end_task({
  status = KEYS[4], marker = KEYS[5], id = ARGV[4], how = 'CANCELLED', changes = {}, source = fields,
  is_untold = not found,
})
if not found then
  -- The mark lives for at least a day. It is of no use to a later delivery, or to a task that never existed.
  redis.call('HSET', KEYS[4], 'status', 'CANCELLED', 'cancel', '1')
  if runs then redis.call('HSET', KEYS[4], 'stops', runs) end
  redis.call('PEXPIRE', KEYS[4], math.max(retention, 86400000))
elseif tonumber(retention) == 0 and has_flow then
  -- A call that is repeated goes on with what is below the task in its flow.
  redis.call('PEXPIRE', KEYS[4], 86400000)
end
return is_live(status) and status or 'PENDING'
