-- Gives a consumer new entries of a queue that limits which tasks run beside each other.
--
-- KEYS  stream, delayed, history
-- ARGV  group, retention, window, consumer, want (how many entries at most), most (how many entries may be
--       pending for all consumers together; empty: any number), field, alias
-- Returns what stopped it, the entries as { id, fields }, and the tasks with aliases that it held, each as
--   { id, enqueued-at ms, the field with its alias }. It stops because
--   0: there are no more entries
--   1: the most tasks that may be pending are pending
--   2: it gave all that it was asked for, or looked at enough
--   3: entries that consumers of another program left are pending, and reclaim.lua takes them over first
--
-- The pending entries are what runs, so there is no second account that could be wrong: a dead host's entries
-- stay pending until they are taken over, and taking over makes them no more. Entries whose track is busy are
-- held in the same step. The keys of their statuses are made here, from a prefix, since nobody knows the ids
-- of tasks before they are read. If the reply is lost, recover.lua finds the entries.
--
-- Entries that another program left are older than every new one. In a queue with tracks they come first.
begin_call()
take_told()
want, most = tonumber(want), tonumber(most)

-- Entries, and bytes of held ones, that one call looks at.
local LOOK, BYTES = 200, 4194304

local pending = redis.call('XPENDING', stream, group)
local running = pending[1]
if turns.limit or most and running >= most then
  for _, owner in ipairs(pending[4] or {}) do
    if is_foreign(history, owner[1]) then return { 3, {}, {} } end
  end
end
local entries, held, looked, size = {}, {}, 0, 0
while true do
  if most and running + #entries >= most then return { 1, entries, held } end
  local count = math.min(want - #entries, LOOK - looked, most and most - running - #entries or want)
  if count <= 0 or size > BYTES then return { 2, entries, held } end
  local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', stream, '>')
  local found = read and read[1][2] or {}
  for _, entry in ipairs(found) do
    if not turns.limit or tracks.take(entry[1], entry[2], field) then
      append(entries, entry)
    else
      size = size + size_of(entry[2])
      append(held, tracks.named_by(entry[2], alias))
    end
  end
  looked = looked + #found
  if #found < count then return { 0, entries, held } end
end
