-- Looks at a page of a stream: the tasks in it, and which of them nothing will deliver any more.
--
-- KEYS  stream (or dead letters, which have no group), history
-- ARGV  group, from, limit, bytes
-- Returns the id to go on at ('' when done), and for each entry { entry, its task id or false, 1 when the
--   group has read it and it is not pending, 2 when that was so before tqhost came, else 0 }. Writes nothing.
--
-- Fields may be large, and Redis copies them for every look. So the script reads one entry first, and then as
-- many at a time as fit into `bytes` if they are as large as those before.
begin_call()
local last = last_delivered()
limit, bytes = tonumber(limit), tonumber(bytes)
local out, size, count = {}, 0, 1
while count > 0 do
  local found = redis.call('XRANGE', stream, from, '+', 'COUNT', count)
  for _, entry in ipairs(found) do
    local id, fields = unpack(entry)
    size = size + size_of(fields)
    append(out, { id, value_in(fields, 'tq-id'), passed_over(history, last, id) })
    from = '(' .. id
  end
  if #found < count then return { '', out } end
  count = math.min(limit - #out, count * 8, math.floor((bytes - size) / (size / #out + 1)))
end
return { from, out }
