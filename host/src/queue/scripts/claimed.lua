-- Looks at a page of the group's pending entries, and whether they still exist.
--
-- KEYS  stream
-- ARGV  group, from, limit, bytes
-- Returns the id to go on at ('' when done), and { entry, idle ms, 1 when the entry is in the stream } for
-- each.
--   Writes nothing.
begin_call()
limit, bytes = tonumber(limit), tonumber(bytes)
local pending = redis.pcall('XPENDING', stream, group, from, '+', limit)
local out, size = {}, 0
for _, p in ipairs(pending) do
  if size > bytes then return { p[1], out } end
  local found = redis.call('XRANGE', stream, p[1], p[1])[1]
  size = size + (found and size_of(found[2]) or 0)
  append(out, { p[1], p[3], found and 1 or 0 })
end
return { #pending == limit and '(' .. pending[limit][1] or '', out }
