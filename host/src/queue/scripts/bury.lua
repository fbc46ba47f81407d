-- Ends a task as a dead letter: FAILED, kept with its reason until somebody requeues or purges it.
--
-- KEYS  1 stream · 2 dead letters · 3 status · 4 marker of the idempotency key (the stream: none)
-- ARGV  1 group · 2 consumer · 3 entry · 4 retention ms · 5 attempt · 6 plugin · 7 error · 8 enqueued-at ms · 9 id · 10 window ms
--       11… the dead letter's fields, name and value; tq-failed-at is added here
-- Gives 1, or 0 when this consumer does not own the entry any more: then nothing was written. A task that was cancelled while it waited is none.
--
-- The dead letter comes with the ack or not at all: a key of another type in its place is an error before the first write.
-- A list too long for one call in Lua (7,000 values) is kept whole in the field tq-packed, as MessagePack.
local bad = wrong_type(KEYS[2], 'stream')
if bad then return bad end
if not owned(KEYS[1], ARGV[1], ARGV[3], ARGV[2]) then return 0 end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.call('XDEL', KEYS[1], ARGV[3])
if take_mark(KEYS[3]) then
  end_status(KEYS[3], tonumber(ARGV[4]))
  return 1
end
local now = now_ms()
local fields = rest(11)
if #fields > 7000 then
  local own = {}
  local short = {}
  for i = 1, #fields, 2 do
    local into = string.sub(fields[i], 1, 3) == 'tq-' and #short < 100 and short or own
    into[#into + 1] = fields[i]
    into[#into + 1] = fields[i + 1]
  end
  short[#short + 1] = 'tq-packed'
  short[#short + 1] = cmsgpack.pack(own)
  fields = short
end
fields[#fields + 1] = 'tq-failed-at'
fields[#fields + 1] = now
redis.call('XADD', KEYS[2], '*', unpack(fields))
local retention = tonumber(ARGV[4])
if retention > 0 then
  set_status(KEYS[3], 'status', 'FAILED', 'attempt', ARGV[5], 'plugin', ARGV[6], 'consumer', ARGV[2],
    'error', ARGV[7], 'enqueued_at', ARGV[8], 'finished_at', now, 'entry', ARGV[3])
  redis.call('HDEL', KEYS[3], 'due_at', 'parked_as')
end
end_status(KEYS[3], retention)
end_marker(KEYS[1], KEYS[4], ARGV[9], ARGV[10])
return 1
