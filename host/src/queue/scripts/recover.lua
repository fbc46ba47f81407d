-- Lists the pending entries of this consumer: a lost reply may have delivered entries that it has not seen.
--
-- KEYS  stream
-- ARGV  group, consumer, from, look, give (how many to return), bytes, in_flight... (entries to leave out)
-- Returns the id to go on at ('' when done) and entries as { id, fields (false when deleted), deliveries }.
--   Writes nothing.
begin_call()
local skip, out, size = {}, {}, 0
for i = in_flight_at, #ARGV do skip[ARGV[i]] = true end
look, give, bytes = tonumber(look), tonumber(give), tonumber(bytes)
local pending = redis.call('XPENDING', stream, group, from, '+', look, consumer)
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
