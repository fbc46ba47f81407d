-- Looks at a page of the group's pending entries, and whether they still exist.
--
-- KEYS  stream
-- ARGV  group, from, limit, bytes
-- Returns the id to go on at ('' when done), and for each { entry, idle ms, 1 when the entry is in the
--   stream }. Writes nothing.
begin_call()
limit, bytes = tonumber(limit), tonumber(bytes)
local pending = redis.pcall('XPENDING', stream, group, from, '+', limit)
local out, size = {}, 0
for _, record in ipairs(pending) do
  local id, _, idle = unpack(record)
  if size > bytes then return { id, out } end
  local fields = fields_in(stream, id)
  size = size + size_of(fields or {})
  append(out, { id, idle, fields and 1 or 0 })
end
return { #pending == limit and '(' .. pending[limit][1] or '', out }
