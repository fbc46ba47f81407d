-- Looks at a page of the delayed tasks' fields.
--
-- KEYS  1 delayed · 2 parked
-- ARGV  1 cursor ('0' at first) · 2 about how many to look at
-- Gives the next cursor ('0' when done), how many bytes the fields had, and for each { member, its task id or
--   false, 1 when it is not among the delayed ones, 1 when its fields cannot be read and it is not due yet }.
--   Writes nothing. A task that is due and cannot be read is buried at its delivery.
local now = now_ms()
local page = redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
local out, size = {}, 0
for i = 1, #page[2], 2 do
  size = size + #page[2][i + 1]
  local member = page[2][i]
  local due = redis.call('ZSCORE', KEYS[1], member)
  local fields = parked_fields(page[2][i + 1])
  local unreadable = not fields and due and tonumber(due) > now
  out[#out + 1] = { member, fields and id_in(fields) or false, due and 0 or 1, unreadable and 1 or 0 }
end
return { page[1], size, out }
