-- Looks at a page of the delayed tasks' fields.
--
-- KEYS  delayed, parked
-- ARGV  cursor ('0' at first), count (about how many to look at)
-- Returns the next cursor ('0' when done), how many bytes the fields had, and for each { member, its task id
--   or false, 1 when it is not among the delayed ones, 1 when its fields cannot be read and it is not due
--   yet }. Writes nothing. A task that is due and cannot be read is buried at its delivery.
begin_call()
local next_cursor, page = unpack(redis.call('HSCAN', parked, cursor, 'COUNT', count))
local out, size = {}, 0
for i = 1, #page, 2 do
  local member, packed = page[i], page[i + 1]
  local due, fields = redis.call('ZSCORE', delayed, member), parked_fields(packed)
  local is_unreadable = not fields and due and tonumber(due) > now
  size = size + #packed
  local id = fields and value_in(fields, 'tq-id') or false
  append(out, { member, id, due and 0 or 1, is_unreadable and 1 or 0 })
end
return { next_cursor, size, out }
