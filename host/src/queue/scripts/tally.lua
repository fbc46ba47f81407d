-- Adds what a host counted to a minute of a queue's history.
--
-- KEYS  minutes (the fields of the minutes of one hour)
-- ARGV  figures_field, figures (to add, as JSON: name → count), versions_field, versions (theirs, as JSON:
--       version → name → count), host, number (of this host's call, which grows), lives (how long, in ms, the
--       key is kept), most_versions (of a minute), most_marks (how many hosts are marked)
-- Returns 1 when it added the figures, 0 when this call was carried out before.
--
-- The mark of a host is the number of its last call. Safe to run again, unless more than `most_marks` hosts
-- have counted something in this hour: the others have no mark.
begin_call()
local mark = 'by:' .. host
local found = redis.call('HMGET', minutes, mark, 'marks', figures_field, versions_field)
if found[1] and tonumber(found[1]) >= tonumber(number) then return 0 end

-- A value that is no JSON object is replaced.
local function decoded(text)
  local is_json, value = pcall(cjson.decode, text or '{}')
  return is_json and type(value) == 'table' and value or {}
end

local function add(to, more)
  for name, count in pairs(more) do to[name] = (tonumber(to[name]) or 0) + count end
end

local all, known, size = decoded(found[3]), decoded(found[4]), 0
add(all, cjson.decode(figures))
for _ in pairs(known) do size = size + 1 end
for version, more in pairs(cjson.decode(versions)) do
  if not known[version] and size < tonumber(most_versions) then
    known[version], size = {}, size + 1
  end
  if known[version] then add(known[version], more) end
end

redis.call('HSET', minutes, figures_field, cjson.encode(all))
if size > 0 then redis.call('HSET', minutes, versions_field, cjson.encode(known)) end
if found[1] or (tonumber(found[2]) or 0) < tonumber(most_marks) then
  redis.call('HSET', minutes, mark, number)
  if not found[1] then redis.call('HINCRBY', minutes, 'marks', 1) end
end
redis.call('PEXPIRE', minutes, lives)
return 1
