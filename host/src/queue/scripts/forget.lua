-- Deletes a page of the entries that the group was done with before tqhost came.
--
-- KEYS  1 stream · 2 history
-- ARGV  1 group · 2 first id to look at ('-' at first) · 3 how many to look at
--       · 4 bytes beyond which no more are looked at (at least one is)
-- Gives the id to go on at ('' when done), and how many were deleted. Safe to run again.
begin_call()
local last = last_delivered()
local from, limit, bytes, size, looked = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), 0, 0
local noted = redis.call('HGET', KEYS[2], group)
if not noted then return { '', 0 } end
local old = {}
while looked < limit and size < bytes do
  local found = redis.call('XRANGE', stream, from, noted, 'COUNT', 1)[1]
  if not found then
    from = ''
    break
  end
  from, looked, size = '(' .. found[1], looked + 1, size + size_of(found[2])
  if passed_over(KEYS[2], last, found[1]) == 2 then append(old, found[1]) end
end
return { from, #old > 0 and redis.call('XDEL', stream, unpack(old)) or 0 }
