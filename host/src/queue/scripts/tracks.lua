-- Looks at a page of the tracks of a queue for turns that nobody uses, and mends them if asked to.
--
-- KEYS  stream, delayed
-- ARGV  group, retention, window, cursor ('0' at first), count (about how many to look at), what (owners:
--       looks at the tasks that have their turn, tracks: at the members of all tracks), mends
-- Returns the next cursor ('0' when done), and for each fault a kind and the task's id or the member:
--   turn-without-task: the task has its turn, and is in no place any more
--   track-without-turn: tasks are held, and none of their track has its turn
--   broken-track: a turn is noted in one of two places, or a held task is not among the delayed ones
--
-- Every script leaves the tracks whole, so one look at one moment is enough. Safe to run again.
begin_call()
take_told()
local out = {}
mends = mends == '1'

-- Whether a task that has its turn is in some place. If it was never begun, it may have no status; so its
-- turn names its entry.
local function is_somewhere(id, entry)
  local state, known_entry, member, _, kept_until = place_of(turns.statuses .. id)
  return exists(entry) or is_live(state) and has_place(known_entry, member, kept_until)
end

local function look_at_owner(id)
  local track, entry = tracks.turn_of(id)
  if track and not is_somewhere(id, entry) then
    append(out, 'turn-without-task', id)
    if mends then tracks.free(id) end
  elseif not track or not redis.call('ZSCORE', turns.tracks, track .. '/b/' .. id) then
    append(out, 'broken-track', id)
    if mends and track then tracks.give(track, id, entry) end
    if mends and not track then redis.call('HDEL', turns.owners, id) end
  end
end

local function look_at_member(member)
  local track, kind, rest = string.match(member, '^(%w+)/(%w)/(.*)$')
  if kind == 'b' then
    if tracks.turn_of(rest) == track then return end
    append(out, 'broken-track', rest)
    if mends then
      redis.call('ZREM', turns.tracks, member)
      tracks.pass_on(track)
    end
  elseif not redis.call('ZSCORE', turns.delayed, member) then
    append(out, 'broken-track', member)
    -- Its fields have no due time any more; the doctor finds that, too, and puts them back into the stream.
    if mends then redis.call('ZREM', turns.tracks, member) end
  elseif tracks.count_in(track) == 0 then
    append(out, 'track-without-turn', member)
    if mends then tracks.pass_on(track) end
  end
end

local scan, key, look_at = 'ZSCAN', turns.tracks, look_at_member
if what == 'owners' then scan, key, look_at = 'HSCAN', turns.owners, look_at_owner end
local next_cursor, page = unpack(redis.call(scan, key, cursor, 'COUNT', count))
for i = 1, #page, 2 do look_at(page[i]) end
return { next_cursor, out }
