-- Claims new entries for a consumer of a queue with limits (`turns` of lib.lua).
--
-- KEYS  stream, delayed, history
-- ARGV  group, retention, window, consumer, want (how many entries at most), most (how many entries may be
--       pending for all consumers together; empty: any number), field, alias
-- Returns what stopped it, the entries as { id, fields }, and the tasks with aliases that it held, each as
--   { id, enqueued-at ms, the field with its alias }. It stops because
--   0: there are no more entries
--   1: the most tasks that may be pending are pending
--   2: it has claimed as many entries as were wanted, or has looked at LOOK entries or BYTES bytes
--   3: entries that consumers of another program left are pending, and reclaim.lua takes them over first
--
-- The pending entries count as running, so there is no second count that could be wrong: a dead host's
-- entries stay pending until they are taken over, and a takeover does not change their number. Entries whose
-- track is busy are held in the same step. The keys of their statuses are made here, from a prefix, because
-- the ids of tasks are not known before they are read. If the reply is lost, recover.lua finds the entries.
--
-- Entries that another program left are older than every new one. In a queue with tracks they come first.
begin_call()
take_told()
want, most = tonumber(want), tonumber(most)

-- The most entries that one call looks at, and about the most bytes of entries that it holds.
local LOOK, BYTES = 200, 4194304

local running, _, _, owners = unpack(redis.call('XPENDING', stream, group))
if turns.limit or most and running >= most then
  for _, owner in ipairs(owners or {}) do
    if is_foreign(history, owner[1]) then return { 3, {}, {} } end
  end
end
local entries, held, looked, size = {}, {}, 0, 0
while true do
  if most and running + #entries >= most then return { 1, entries, held } end
  local places = most and most - running - #entries or want
  local count = math.min(want - #entries, LOOK - looked, places)
  if count <= 0 or size > BYTES then return { 2, entries, held } end
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  local found = read and read[1][2] or {}
  for _, entry in ipairs(found) do
    local id, fields = unpack(entry)
    if not turns.limit or tracks.take(id, fields, field) then
      append(entries, entry)
    else
      size = size + size_of(fields)
      append(held, tracks.named_by(fields, alias))
    end
  end
  looked = looked + #found
  if #found < count then return { 0, entries, held } end
end
