-- Adds what a host counted to a minute of a queue's history.
--
-- KEYS  1 minutes: the fields of the minutes of one hour
-- ARGV  1 the field of the figures · 2 the figures to add, as JSON: name → count
--       3 the field of the versions · 4 theirs, as JSON: version → name → count
--       5 the host · 6 the number of its call, which grows
--       7 how long (ms) the key is kept · 8 the most versions of a minute · 9 the most hosts that are marked
-- Gives 1 when it added the figures, 0 when this call was carried out before.
--
-- The mark of a host is the number of its last call. Safe to run again, unless more than ARGV[9] hosts have
-- counted something in this hour: the others have no mark.
begin_call()
local mark = 'by:' .. ARGV[5]
local found = redis.call('HMGET', KEYS[1], mark, 'marks', ARGV[1], ARGV[3])
if found[1] and tonumber(found[1]) >= tonumber(ARGV[6]) then return 0 end

-- A value that is no JSON object is replaced.
local function decoded(text)
  local is_json, value = pcall(cjson.decode, text or '{}')
  return is_json and type(value) == 'table' and value or {}
end

local function add(to, more)
  for name, count in pairs(more) do to[name] = (tonumber(to[name]) or 0) + count end
end

local figures, versions, size = decoded(found[3]), decoded(found[4]), 0
add(figures, cjson.decode(ARGV[2]))
for _ in pairs(versions) do size = size + 1 end
for version, more in pairs(cjson.decode(ARGV[4])) do
  if not versions[version] and size < tonumber(ARGV[8]) then
    versions[version], size = {}, size + 1
  end
  if versions[version] then add(versions[version], more) end
end

redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(figures))
if size > 0 then redis.call('HSET', KEYS[1], ARGV[3], cjson.encode(versions)) end
if found[1] or (tonumber(found[2]) or 0) < tonumber(ARGV[9]) then
  redis.call('HSET', KEYS[1], mark, ARGV[6])
  if not found[1] then redis.call('HINCRBY', KEYS[1], 'marks', 1) end
end
redis.call('PEXPIRE', KEYS[1], ARGV[7])
return 1
