-- Lists what is pending for this consumer: after a lost reply, entries may have been delivered that nobody saw.
--
-- KEYS  1 stream
-- ARGV  1 group · 2 consumer · 3 first id to look at ('-' at first) · 4 how many at most · 5… entries that are in flight, to leave out
-- Gives the id to go on at ('' when done) and entries as { id, fields (false when deleted), deliveries }. Writes nothing.
local skip = {}
for i = 5, #ARGV do skip[ARGV[i]] = true end
local limit = tonumber(ARGV[4])
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], '+', limit, ARGV[2])
local out = {}
for _, p in ipairs(pending) do
  if not skip[p[1]] then
    local found = redis.call('XRANGE', KEYS[1], p[1], p[1])
    out[#out + 1] = { p[1], found[1] and found[1][2] or false, p[4] }
  end
end
local next_id = ''
if #pending == limit then next_id = '(' .. pending[#pending][1] end
return { next_id, out }
