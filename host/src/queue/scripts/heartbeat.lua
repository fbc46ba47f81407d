-- Renews the leases of running tasks and writes their latest progress.
--
-- KEYS  1 stream · then for each task: status, marker of its idempotency key (the stream: it has none)
-- ARGV  1 group · 2 consumer · 3 retention ms · 4 lease ms · then for each task: entry, id, percent (empty:
--       nothing new), note
-- Gives for each task one of
--   1: the lease is renewed
--   0: the lease is lost: stop the attempt
--   2: the task was cancelled: stop the attempt
--   3: the entry was deleted from outside; the attempt may go on
--   4: the entry was deleted, and the task can no longer be settled: stop the attempt
--
-- XCLAIM tells whether the entry exists without reading its fields, and removes a deleted entry from the
-- pending ones. No other consumer can own that task then. Its status says, for one lease at a time, that it
-- belongs to this consumer; settle.lua accepts that in place of the entry.
-- JUSTID keeps the delivery count, which counts crashes. Safe to run again.
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local rules = rules_of(stream, nil, ARGV[3], 0)
local lease_end = string.format('%.0f', tonumber(rules.now) + tonumber(ARGV[4]))

local function beat(status, marker, entry, id, percent, note)
  if owned(stream, group, entry, consumer) then
    local is_there = #redis.call('XCLAIM', stream, group, consumer, 0, entry, 'JUSTID') > 0
    if percent ~= '' then set_status(status, 'progress', percent, 'note', note) end
    if is_there then return 1 end
    redis.pcall('PERSIST', status)
    set_status(status, 'status', 'PROCESSING', 'entry', entry, 'consumer', consumer, 'deleted', lease_end)
    return 3
  end
  local known = redis.pcall('HMGET', status, 'status', 'entry', 'consumer', 'deleted')
  if known.err then return 0 end
  if known[1] == 'CANCELLED' then return 2 end
  if known[1] ~= 'PROCESSING' or known[2] ~= entry then return 0 end
  if known[3] == consumer and known[4] then
    redis.call('HSET', status, 'deleted', lease_end)
    return 3
  end
  -- If the whole stream or group was deleted, nothing can deliver its tasks again.
  if is_there(stream, group, entry) then return 0 end
  return note_lost(rules, status, marker, id, entry, consumer) and 4 or 0
end

local out = {}
for i = 1, (#KEYS - 1) / 2 do
  local a = 4 * i + 1
  out[i] = beat(KEYS[2 * i], KEYS[2 * i + 1], ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3])
end
return out
