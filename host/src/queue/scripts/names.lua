-- Lists a page of a stream: the ids of its entries, and which of them have fields of tqhost. The reply has no
-- fields.
--
-- KEYS  stream
-- ARGV  from (the id to begin at), to (the id to end at), command (XRANGE or XREVRANGE), most (how many),
--       bytes
-- Returns for each entry its id, and 1 if it has a field that begins with tq-, or 0. Writes nothing.
begin_call()
local out, size = {}, 0
most, bytes = tonumber(most), tonumber(bytes)

-- 1 if one of the fields is of tqhost, else 0.
local function has_reserved(fields)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 3) == 'tq-' then return 1 end
  end
  return 0
end

while #out < most and size <= bytes do
  local found = redis.call(command, stream, from, to, 'COUNT', math.min(most - #out, 10))
  for _, entry in ipairs(found) do
    size = size + size_of(entry[2])
    append(out, { entry[1], has_reserved(entry[2]) })
  end
  if #found == 0 then break end
  from = '(' .. found[#found][1]
end
return out
