-- Looks at a page of a stream: the tasks in it, and which of them nothing will deliver any more.
--
-- KEYS  1 stream (or dead letters, which have no group) · 2 history
-- ARGV  1 group · 2 first id to look at ('-' at first) · 3 how many to look at
--       · 4 bytes beyond which no more are looked at (at least one is)
-- Gives the id to go on at ('' when done), and for each entry { entry, its task id or false, 1 when the group
--   has read it and it is not pending, 2 when that was so before tqhost came, else 0 }. Writes nothing.
--
-- Fields may be large, and Redis copies them for every look. The script fetches one entry first, then as many
-- as fit if they have the size of those before.
begin_call()
local last = last_delivered()
local from, limit, bytes = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local out, size, count = {}, 0, 1
while count > 0 do
  local found = redis.call('XRANGE', stream, from, '+', 'COUNT', count)
  for _, entry in ipairs(found) do
    local id, fields = unpack(entry)
    size = size + size_of(fields)
    append(out, { id, value_in(fields, 'tq-id'), passed_over(KEYS[2], last, id) })
    from = '(' .. id
  end
  if #found < count then return { '', out } end
  count = math.min(limit - #out, count * 8, math.floor((bytes - size) / (size / #out + 1)))
end
return { from, out }
