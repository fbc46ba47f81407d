-- Lists the pending entries of this consumer: a lost reply may have delivered entries that it has not seen.
--
-- KEYS  1 stream
-- ARGV  1 group · 2 consumer · 3 first id to look at ('-' at first) · 4 how many to look at
--       · 5 how many to give · 6 bytes beyond which no more are given (at least one is)
--       · 7… entries that are in flight, to leave out
-- Gives the id to go on at ('' when done) and entries as { id, fields (false when deleted), deliveries }.
--   Writes nothing.
begin_call()
local skip, out, size = {}, {}, 0
for i = 7, #ARGV do skip[ARGV[i]] = true end
local look, give, bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local pending = redis.call('XPENDING', stream, group, ARGV[3], '+', look, ARGV[2])
for _, p in ipairs(pending) do
  if not skip[p[1]] then
    if #out == give or size > bytes then return { p[1], out } end
    local found = redis.call('XRANGE', stream, p[1], p[1])
    local fields = found[1] and found[1][2] or false
    size = size + size_of(fields or {})
    append(out, { p[1], fields, p[4] })
  end
end
return { #pending == look and '(' .. pending[look][1] or '', out }
