-- Takes over entries that went without a heartbeat for a whole lease, from other consumers and from this one.
--
-- KEYS  1 stream · 2 history: group → the last entry that it was given before tqhost came
-- ARGV  1 group · 2 consumer · 3 lease ms · 4 id to begin at · 5 how many at most
--       6 bytes beyond which no more are taken (at least one is)
--       7 ms: an owner that gave a sign of life this long, or longer, after the entry's last heartbeat did
--         not die with it (0: no owner died)
-- Gives the id to go on at ('' when done), the entries as { id, fields, deliveries }, and the ids of entries
--   that were deleted while they were pending.
--
-- The delivery count is 1 + crashes, so it grows only where the owner died. A host that stalled and went on
-- did not die, nor did an owner that read or renewed other entries after it should have renewed this one.
-- Consumers of another program that served the group before count deliveries as they like: what is taken over
-- from one of them was delivered for the first time.
-- If the reply is lost, this consumer owns entries that it has not seen: recover.lua finds them, or this
-- script after another lease.
local consumer, limit, bytes, outlived = ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local silences
local noted = redis.pcall('HGET', KEYS[2], group)
local has_others = type(noted) == 'string' and noted ~= '0-0'

-- Whether this consumer is not a host: names of hosts end in a process, 12 digits, and perhaps a number.
local function is_foreign(owner)
  return has_others and not string.find(owner, '%-%d+%-' .. string.rep('%x', 12) .. '%.?%d*$')
end

-- The ms since a consumer last gave a sign of life.
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

local entries, lost, size = {}, {}, 0
local abandoned = redis.call('XPENDING', stream, group, 'IDLE', ARGV[3], ARGV[4], '+', limit)
for _, pending in ipairs(abandoned) do
  local id, owner, idle, deliveries = unpack(pending)
  if size > bytes then return { id, entries, lost } end
  if is_foreign(owner) then
    deliveries = 1
  elseif owner ~= consumer and idle - silence_of(owner) < outlived then
    deliveries = deliveries + 1
  end
  local found = redis.call('XRANGE', stream, id, id)[1]
  -- XCLAIM removes a deleted entry from the pending ones.
  redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
  if found then
    size = size + size_of(found[2])
    append(entries, { id, found[2], deliveries })
  else
    append(lost, id)
  end
end
return { #abandoned == limit and '(' .. abandoned[limit][1] or '', entries, lost }
