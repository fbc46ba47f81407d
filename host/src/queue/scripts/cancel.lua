-- Cancels a task that has not ended, wherever it is.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 status · 5 marker of the idempotency key (the stream: none)
--       6 the flow that the task joins, if it joins one · 7 the children of this flow that are not released
-- ARGV  1 group · 2 retention ms · 3 window ms · 4 task id · 5 entry in which it was found (empty: not
--       looked for) · 6 `1`: only if it waits (empty: also if it runs)
-- Gives the status that the task had before, or an empty one when it is not known. CANCELLED, COMPLETED and
--   FAILED stay as they are; so does a task that runs where only one that waits is meant (PROCESSING).
--
-- No further child of the flow is released. The children that were released are cancelled by other calls.
-- That holds also when the task is dead because one of them died, since the others go on.
-- This script acknowledges and deletes a running task; its host stops the handler at the next heartbeat.
-- Where few tasks may run beside each other, it marks a running task instead: the task keeps its place and
-- its turn until its host has stopped the handler and settles it. If the entry of a waiting task is not known
-- (an older host promoted it), the task is marked too: begin.lua drops it at its delivery, or settle.lua
-- honours the mark.
take_told()
local bad = wrong_type(stream, 'stream', KEYS[2], 'zset', KEYS[3], 'hash', KEYS[4], 'hash',
  KEYS[6], 'hash') or join_refusal(KEYS[4])
if bad then return bad end
local status, known_entry, member = place_of(KEYS[4])
-- Whether the task runs, or was delivered a moment ago.
local function is_taken()
  for _, entry in ipairs({ known_entry or '', ARGV[4], ARGV[5] }) do
    if string.match(entry, '^%d+%-%d+$') and pending_of(entry) then
      local there = redis.call('XRANGE', stream, entry, entry)[1]
      local id = there and (value_in(there[2], 'tq-id') or entry)
      if id == ARGV[4] then return true end
    end
  end
  return status == 'PROCESSING'
end
if ARGV[6] == '1' and is_taken() then return 'PROCESSING' end
local flow = KEYS[6]
local has_flow = redis.call('HEXISTS', flow, 'left') == 1
if has_flow then redis.call('UNLINK', KEYS[7]) end
if status and not is_live(status) then return status end
local found, runs, fields = false, false, nil
for _, entry in ipairs({ known_entry or '', ARGV[4], ARGV[5] }) do
  if not found and string.match(entry, '^%d+%-%d+$') then
    local there = redis.call('XRANGE', stream, entry, entry)[1]
    -- Another task may have been given an id that looks like an entry's.
    if there and (value_in(there[2], 'tq-id') or entry) == ARGV[4] then
      runs = turns.are_limited and pending_of(entry) ~= nil
      -- Redis counts what a group has read, and would miss this entry there (stand.lua).
      local last = not runs and not pending_of(entry) and last_delivered()
      if not runs then fields = drop(entry) end
      if last then redis.call('XGROUP', 'SETID', stream, group, last) end
      found = not runs
    end
  end
end
if member and redis.call('ZREM', KEYS[2], member) == 1 then
  fields = parked_fields(redis.call('HGET', KEYS[3], member) or '')
  redis.call('HDEL', KEYS[3], member)
  if turns.limit then redis.call('ZREM', turns.tracks, member) end
  found = true
end
-- A task that is held by its flow takes the flow with it.
if has_flow and not found and not runs and not known_entry and status then
  fields = cmsgpack.unpack(redis.call('HGET', flow, 'fields'))
  redis.call('DEL', flow)
  found = true
end
turns.are_kept = runs
-- Where no statuses are kept, the flow knows that its task is dead.
if not found and not runs and not status then return redis.call('HGET', flow, 'letter') and 'FAILED' or '' end
redis.call('HDEL', KEYS[4], 'entry')
-- The end of a task that is only marked is told by the script that finds its entry later.
local source = found and fields
end_task(KEYS[4], KEYS[5], ARGV[4], 'CANCELLED', {}, source)
if not found then
  -- The mark lives for at least a day. It is of no use to a later delivery, or to a task that never existed.
  redis.call('HSET', KEYS[4], 'status', 'CANCELLED', 'cancel', '1')
  redis.call('PEXPIRE', KEYS[4], math.max(retention, 86400000))
end
return status or 'PENDING'
