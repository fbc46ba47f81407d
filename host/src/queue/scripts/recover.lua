-- Lists the pending entries of this consumer, because a lost reply may have delivered entries to it.
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
for _, record in ipairs(pending) do
  local id, _, _, deliveries = unpack(record)
  if not skip[id] then
    if #out == give or size > bytes then return { id, out } end
    local fields = fields_in(stream, id) or false
    size = size + size_of(fields or {})
    append(out, { id, fields, deliveries })
  end
end
return { #pending == look and '(' .. pending[look][1] or '', out }
