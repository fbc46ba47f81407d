-- Looks at a page of the group's pending entries, and whether they still exist.
--
-- KEYS  1 stream
-- ARGV  1 group · 2 first id to look at ('-' at first) · 3 how many to look at
--       · 4 bytes beyond which no more are looked at (at least one is)
-- Gives the id to go on at ('' when done), and { entry, idle ms, 1 when the entry is in the stream } for
-- each.
--   Writes nothing.
local limit, bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[2], '+', limit)
if pending.err then return { '', {} } end
local out, size = {}, 0
for _, p in ipairs(pending) do
  if size > bytes then return { p[1], out } end
  local found = redis.call('XRANGE', KEYS[1], p[1], p[1])
  for _, part in ipairs(found[1] and found[1][2] or {}) do size = size + #part end
  out[#out + 1] = { p[1], p[3], found[1] and 1 or 0 }
end
if #pending == limit then return { '(' .. pending[limit][1], out } end
return { '', out }
