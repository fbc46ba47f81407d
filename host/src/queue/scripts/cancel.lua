-- Cancels a task that has not ended, wherever it is.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 status · 5 marker of the idempotency key (the stream: none)
-- ARGV  1 group · 2 task id · 3 retention ms · 4 window ms · 5 entry in which it was found (empty: not
--       looked for)
-- Gives the status that the task had before, or an empty one when it is not known. CANCELLED, COMPLETED and
--   FAILED stay as they are.
--
-- This script acknowledges and deletes a running task; its host stops the handler at the next heartbeat. If
-- the entry of a waiting task is not known (an older host promoted it), the task is marked: begin.lua drops
-- it at its delivery, or settle.lua honours the mark.
local bad = wrong_type(KEYS[1], 'stream') or wrong_type(KEYS[2], 'zset') or wrong_type(KEYS[3], 'hash')
  or wrong_type(KEYS[4], 'hash')
if bad then return bad end
local known = redis.call('HMGET', KEYS[4], 'status', 'entry', 'parked_as')
local status = known[1] or ''
if status == 'COMPLETED' or status == 'FAILED' or status == 'CANCELLED' then return status end
local found = false
for _, entry in ipairs({ known[2] or '', ARGV[2], ARGV[5] }) do
  if not found and string.match(entry, '^%d+%-%d+$') then
    local there = redis.call('XRANGE', KEYS[1], entry, entry)
    if there[1] then
      -- Another task may have been given an id that looks like an entry's.
      if (id_in(there[1][2]) or entry) == ARGV[2] then
        redis.call('XACK', KEYS[1], ARGV[1], entry)
        redis.call('XDEL', KEYS[1], entry)
        found = true
      end
    end
  end
end
if known[3] and redis.call('ZREM', KEYS[2], known[3]) == 1 then
  redis.call('HDEL', KEYS[3], known[3])
  found = true
end
if not found and status == '' then return '' end
redis.call('HDEL', KEYS[4], 'entry')
end_task(rules_of(KEYS[1], nil, ARGV[3], ARGV[4]), KEYS[4], KEYS[5], ARGV[2], true, nil, 'CANCELLED', {})
if not found then
  -- The mark lives for at least a day. It is of no use to a later delivery, or to a task that never existed.
  redis.call('HSET', KEYS[4], 'status', 'CANCELLED', 'cancel', '1')
  redis.call('PEXPIRE', KEYS[4], math.max(tonumber(ARGV[3]), 86400000))
end
return status == '' and 'PENDING' or status
