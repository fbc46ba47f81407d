-- Lists a page of a stream: the ids of its entries, and which of them have fields of tqhost. The fields stay
-- in Redis.
--
-- KEYS  1 stream
-- ARGV  1 the id to begin at · 2 the id to end at · 3 XRANGE or XREVRANGE · 4 how many at most
--       5 bytes beyond which no more are looked at (at least one is)
-- Gives for each entry its id, and 1 if it has a field that begins with tq-, or 0. Writes nothing.
begin_call()
local from, out, size = ARGV[1], {}, 0
local most, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])

local function is_reserved(fields)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 3) == 'tq-' then return 1 end
  end
  return 0
end

while #out < most and size <= bytes do
  local found = redis.call(ARGV[3], stream, from, ARGV[2], 'COUNT', math.min(most - #out, 10))
  for _, entry in ipairs(found) do
    size = size + size_of(entry[2])
    append(out, { entry[1], is_reserved(entry[2]) })
  end
  if #found == 0 then break end
  from = '(' .. found[#found][1]
end
return out
