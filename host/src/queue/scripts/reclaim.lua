-- Takes over entries that went without a heartbeat for a whole lease, from other consumers and from this one.
--
-- KEYS  stream, delayed, history
-- ARGV  group, retention, window, consumer, lease, from, limit, bytes, outlived (ms: an owner that gave a
--       sign of life this long, or longer, after the entry's last heartbeat is not dead; 0: no owner is),
--       most (how many entries may run for all consumers together; empty: any number), field, alias
-- Returns the id to go on at ('' when done), the entries as { id, fields, deliveries }, the ids of entries
--   that were deleted while they were pending, and the held tasks with aliases as claim.lua gives them.
--
-- The delivery count is 1 + crashes, so it grows only where the owner died. A host that stalled and went on
-- did not die, nor did an owner that read or renewed other entries after it should have renewed this one.
-- Consumers of another program that served the group before count deliveries as they like, so an entry that
-- is taken over from one of them counts as delivered for the first time.
--
-- A task of a host keeps its place and its turn when it is taken over. A task that another program left has
-- neither: it is taken over when there is a place, in the order of the stream, and held if its track is busy.
-- Until then it stays where it is. In queues with tracks, claim.lua reads nothing new meanwhile.
--
-- If the reply is lost, this consumer owns entries that it has not seen: recover.lua finds them, or this
-- script after another lease.
begin_call()
take_told()
lease, limit, bytes = tonumber(lease), tonumber(limit), tonumber(bytes)
outlived, most = tonumber(outlived), tonumber(most)

-- The fewest entries that one call looks at in a queue with limits, where some of them may have to stay.
local LOOK = 500

-- How long ago (ms) a consumer last gave a sign of life. `silences` has that of all consumers.
local silences
local function silence_of(owner)
  if not silences then
    silences = {}
    for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
      local about = named(fields)
      silences[about['name']] = about['idle']
    end
  end
  return silences[owner] or 0
end

-- How many of a foreign consumer's `count` pending entries have not run for a lease. A consumer that was
-- silent for a lease was given none since then. If it lives, only the first LOOK are looked at, and the rest
-- counts as running.
local function idle_of(owner, count)
  if silence_of(owner) >= lease then return count end
  return #redis.call('XPENDING', stream, group, 'IDLE', lease, '-', '+', math.min(count, LOOK), owner)
end

-- Whether one more entry may run. `places` is how many may, once it was counted.
local places
local function has_place()
  if not most then return true end
  if not places then
    places = most
    for _, pending in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
      local owner, count = pending[1], tonumber(pending[2])
      places = places - count + (is_foreign(history, owner) and idle_of(owner, count) or 0)
    end
  end
  return places > 0
end

-- The reply's lists, the number of held tasks, and the bytes of all entries so far.
local entries, lost, held_names, held, size = {}, {}, {}, 0, 0

local function take_over(id, owner, idle, deliveries)
  local was_foreign = is_foreign(history, owner)
  if was_foreign and not has_place() then return end
  if was_foreign then
    deliveries = 1
  -- The two times are not measured at one moment, so their difference may be below 0.
  elseif owner ~= consumer and outlived > 0 and idle - silence_of(owner) < outlived then
    deliveries = deliveries + 1
  end
  local fields = fields_in(stream, id)
  if fields then size = size + size_of(fields) end
  -- This consumer may still run its own entries, so they are not put aside.
  if fields and turns.limit and owner ~= consumer and not tracks.take(id, fields, field, deliveries) then
    held = held + 1
    append(held_names, tracks.named_by(fields, alias))
    return
  end
  -- XCLAIM removes a deleted entry from the pending ones.
  redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
  if fields then
    append(entries, { id, fields, deliveries })
    if was_foreign and places then places = places - 1 end
  else
    append(lost, id)
  end
end

local look = turns.are_limited and math.max(limit, LOOK) or limit
local abandoned = redis.call('XPENDING', stream, group, 'IDLE', lease, from, '+', look)
for _, pending in ipairs(abandoned) do
  if size > bytes or #entries + #lost + held >= limit then
    return { pending[1], entries, lost, held_names }
  end
  take_over(unpack(pending))
end
return { #abandoned == look and '(' .. abandoned[look][1] or '', entries, lost, held_names }
