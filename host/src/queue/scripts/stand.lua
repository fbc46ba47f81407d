-- Tells how long a stream is, and how far its groups have read it.
--
-- KEYS  stream, history, adopted
-- ARGV  group
-- Returns { number of entries, number of entries that were ever added, id of the first one, id of the last
--   one, highest id that was deleted by XDEL, the note of the history or false }, and for each group { name,
--   id that was delivered last, number of entries that were read or false, number of pending ones, 1 if it is
--   confirmed }. Empty without a stream. Writes nothing.
begin_call()
local info = redis.pcall('XINFO', 'STREAM', stream)
if info.err then return {} end
local about, groups = named(info), {}
for _, fields in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local one = named(fields)
  local confirmed = redis.pcall('HEXISTS', adopted, one['name'])
  append(groups, { one['name'], one['last-delivered-id'], one['entries-read'], one['pending'],
    confirmed == 1 and 1 or 0 })
end
local noted = redis.pcall('HGET', history, group)
return {
  { about['length'], about['entries-added'], about['recorded-first-entry-id'], about['last-generated-id'],
    about['max-deleted-entry-id'], type(noted) == 'string' and noted or false },
  groups,
}
