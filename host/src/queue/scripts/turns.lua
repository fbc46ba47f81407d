-- The functions for tracks: the tasks of one track begin in their order, and at most `turns.limit` of them
-- have begun and not ended. A task *has its turn* from the step that delivers it until its end. This file
-- stands behind lib.lua, in front of every script. Queues without tracks have no `turns.limit`, and use
-- nothing of it.
--
-- `turns.owners` is a hash: the id of a task that has its turn → its track, and the entry under which it was
-- delivered last. `turns.tracks` is a sorted set whose members have one score, so that those of a track are
-- found by their names: `<track>/b/<id>` for each task that has its turn, and `<track>/h/<number>/<entry>`
-- for each that is held. A track without tasks leaves nothing behind.
--
-- A task that waits for its turn is *held*. Its member is also a delayed task, due at HELD, and its fields
-- are parked. So it is found among the delayed tasks, and counts for max_backlog.

-- The due time of a held task: later than every other one, and the largest number that Lua keeps whole.
local HELD = '9007199254740991'
-- The most held tasks of a track that one call looks at when a place is free.
local MOST_PASSED_ON = 100

-- Patterns of UTF-8: one matches all next characters of one byte, each other one a character of two, three or
-- four bytes. The table is made at its first use.
local kinds
is_text = function(bytes)
  kinds = kinds or {
    '^[%z\1-\127]+', '^[\194-\223][\128-\191]', '^\224[\160-\191][\128-\191]',
    '^[\225-\236\238\239][\128-\191][\128-\191]', '^\237[\128-\159][\128-\191]',
    '^\240[\144-\191][\128-\191][\128-\191]', '^[\241-\243][\128-\191][\128-\191][\128-\191]',
    '^\244[\128-\143][\128-\191][\128-\191]',
  }
  local at = 1
  while at <= #bytes do
    local to
    for _, kind in ipairs(kinds) do to = to or select(2, string.find(bytes, kind, at)) end
    if not to then return false end
    at = to + 1
  end
  return true
end

-- The bounds between which the members of a track are: those with their turn (b), or those that are held (h).
-- The character after `/` is `0`.
local function range(track, kind)
  local from = track .. '/' .. kind
  return '[' .. from .. '/', '(' .. from .. '0'
end

-- How many tasks of a track have their turn.
function tracks.count_in(track)
  return redis.call('ZLEXCOUNT', turns.tracks, range(track, 'b'))
end

-- The member that is held longest in a track, or nil.
local function first_held(track)
  local from, to = range(track, 'h')
  return redis.call('ZRANGEBYLEX', turns.tracks, from, to, 'LIMIT', 0, 1)[1]
end

-- The track of a task that has its turn, and the entry under which it has it. Nil: it does not have its turn.
function tracks.turn_of(id)
  local noted = redis.call('HGET', turns.owners, id)
  if noted then return string.match(noted, '^(%S+) (%S+)$') end
end

-- Notes that a task has its turn, and under which entry.
function tracks.give(track, id, entry)
  redis.call('HSET', turns.owners, id, track .. ' ' .. entry)
  redis.call('ZADD', turns.tracks, 0, track .. '/b/' .. id)
end

-- Puts a held task back into the stream, and gives it its turn. A task that cannot be read gets no turn: its
-- delivery buries it.
local function call_up(track, member)
  local packed = redis.call('HGET', turns.parked, member)
  redis.call('ZREM', turns.tracks, member)
  redis.call('ZREM', turns.delayed, member)
  redis.call('HDEL', turns.parked, member)
  -- Somebody deleted its fields.
  if not packed then return end
  local fields = parked_fields(packed)
  local id = fields and value_in(fields, 'tq-id')
  if not id then
    redis.call('XADD', stream, '*', 'member', member, 'unreadable', packed, 'tq-attempt', 'unreadable')
    return
  end
  local entry = redis.call('XADD', stream, '*', unpack(fields))
  tracks.give(track, id, entry)
  local status = turns.statuses .. id
  local state, _, parked_as = place_of(status)
  if state == 'PENDING' and parked_as == member then
    redis.call('HSET', status, 'entry', entry)
    redis.call('HDEL', status, 'parked_as', 'note')
  end
end

-- Gives the free places of a track to tasks that are held.
function tracks.pass_on(track)
  -- A member without fields takes no place, so one call may remove many of them.
  for _ = 1, MOST_PASSED_ON do
    local member = tracks.count_in(track) < turns.limit and first_held(track)
    if not member then return end
    call_up(track, member)
  end
end

-- Takes the turn from a task that has ended, and passes it on. With `entry`, the turn is only taken if the
-- task has it under this entry, because another task may have the id.
function tracks.free(id, entry)
  local track, under = tracks.turn_of(id)
  if not track or entry and entry ~= under then return end
  redis.call('HDEL', turns.owners, id)
  redis.call('ZREM', turns.tracks, track .. '/b/' .. id)
  tracks.pass_on(track)
end

-- The track of a task, or nil if it runs beside all others. `field` is the field that names the track (empty:
-- all tasks are in one). A task with a producer's delay joins its track when it is due. A task that is
-- malformed, or whose flow has failed, is in no track, because it does not run.
local function track_of(fields, field, entry)
  local id = value_in(fields, 'tq-id')
  local is_malformed = #fields > 7000 or id and (id == '' or #id > 256 or not is_text(id))
  if is_malformed or value_in(fields, 'tq-delay-ms') then return nil end
  local has_failed = value_in(fields, 'tq-flow-failed')
  if has_failed and is_of_host(turns.statuses .. (id or entry), id or entry, entry) then return nil end
  if field == '' then return 'all' end
  local key = value_in(fields, field)
  return key and key ~= '' and string.sub(redis.sha1hex(key), 1, 16) or nil
end

-- Puts a task that was just delivered aside, behind those of its track. `before` is how often it was
-- delivered before this, or nil; its next delivery goes on counting from there.
local function hold(track, id, entry, fields, before)
  local from, to = range(track, 'h')
  local last = redis.call('ZREVRANGEBYLEX', turns.tracks, to, from, 'LIMIT', 0, 1)[1]
  local number = last and tonumber(string.match(last, '/h/(%d+)/')) + 1 or 1
  local member = track .. '/h/' .. string.format('%016.0f', number) .. '/' .. entry
  local status = turns.statuses .. id
  keep_trusted(fields, status, id, entry)
  if before then
    local fence = tonumber(redis.pcall('HGET', status, 'fence')) or 0
    append(fields, 'tq-fence', string.format('%.0f', math.max(before, fence)))
    if before > 1 then append(fields, 'tq-crashes', before - 1) end
    if not value_in(fields, 'tq-attempt') then append(fields, 'tq-attempt', '1') end
  end
  local enqueued_at = keep_origin(fields, id, entry)
  redis.call('ZADD', turns.tracks, 0, member)
  redis.call('ZADD', turns.delayed, HELD, member)
  redis.call('HSET', turns.parked, member, cmsgpack.pack(fields))
  if not mark_of(status, entry) and not is_elsewhere(status, entry, id) then
    forget_end(status, 'entry', 'due_at', 'progress')
    set_status(status, 'status', 'PENDING', 'attempt', value_in(fields, 'tq-attempt') or '1',
      'enqueued_at', enqueued_at, 'parked_as', member, 'note', 'waits for its turn')
  end
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
end

-- Whether a task that was just delivered may run. If not, it is held. `before` is how often it was delivered
-- before this, or nil.
function tracks.take(entry, fields, field, before)
  local id = value_in(fields, 'tq-id') or entry
  local track, under = tracks.turn_of(id)
  if track then
    -- The task comes back after a retry, or because it was held. Or a second task has its id: while the first
    -- one is there (`is_taken`), the second one does not run. If the first one was cancelled and is being
    -- stopped, the second one waits, and is the next one of its track.
    local is_taken = under ~= entry and is_there(under, 0)
    local waits = is_taken and track_of(fields, field, entry) == track
      and mark_of(turns.statuses .. id, entry) == 'elsewhere'
    if waits then
      hold(track, id, entry, fields, before)
      return false
    end
    if not is_taken and not is_elsewhere(turns.statuses .. id, entry, id) then
      tracks.give(track, id, entry)
    end
    return true
  end
  track = track_of(fields, field, entry)
  if not track then return true end
  if tracks.count_in(track) < turns.limit and not first_held(track) then
    tracks.give(track, id, entry)
    return true
  end
  hold(track, id, entry, fields, before)
  -- A track with held tasks may have room: the limit was raised, or somebody deleted something.
  tracks.pass_on(track)
  return false
end

-- Returns what a host needs to note the alias of a task that was held just now: its id, when it was enqueued
-- (ms), and its alias. `alias` is the field that has the alias. Nil: the task has none.
function tracks.named_by(fields, alias)
  for i = 1, alias ~= '' and #fields or 0, 2 do
    if fields[i] == alias then
      return { value_in(fields, 'tq-id'), value_in(fields, 'tq-enqueued-at'), fields[i + 1] }
    end
  end
end
