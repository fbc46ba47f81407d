-- Deletes a page of the entries that the group was done with before tqhost came.
--
-- KEYS  stream, history
-- ARGV  group, from, limit, bytes
-- Returns the id to go on at ('' when done), and how many were deleted. Safe to run again.
begin_call()
local last = last_delivered()
local size, looked = 0, 0
limit, bytes = tonumber(limit), tonumber(bytes)
local noted = redis.call('HGET', history, group)
if not noted then return { '', 0 } end
local old = {}
while looked < limit and size < bytes do
  local found = redis.call('XRANGE', stream, from, noted, 'COUNT', 1)[1]
  if not found then
    from = ''
    break
  end
  from, looked, size = '(' .. found[1], looked + 1, size + size_of(found[2])
  if passed_over(history, last, found[1]) == 2 then append(old, found[1]) end
end
return { from, #old > 0 and redis.call('XDEL', stream, unpack(old)) or 0 }
