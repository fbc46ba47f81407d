-- Takes over what other consumers left without a heartbeat for a whole lease, and takes up again what this one left so itself.
--
-- KEYS  1 stream
-- ARGV  1 group · 2 consumer · 3 lease ms · 4 id to begin at · 5 how many at most · 6 bytes beyond which no more are taken (at least one is)
--       7 ms: an owner that showed itself so long after the entry's last heartbeat did not die with it (0: nobody did)
-- Gives the id to go on at ('' when done), the entries as { id, fields, deliveries }, and the ids of entries
-- that were deleted while they were pending.
--
-- The delivery count is 1 + crashes, so it grows only where the owner died. A host that fell silent and woke
-- up did not, nor did an owner that read or kept other entries alive after it should have renewed this one.
-- After a lost reply the entries are ours, unseen: recover.lua finds them, or this script after another
-- lease.
local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local limit, bytes, outlived = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local silences

-- For how many ms a consumer has shown nothing of itself.
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
  if owner ~= consumer and idle - silence_of(owner) < outlived then deliveries = deliveries + 1 end
  local found = redis.call('XRANGE', stream, id, id)
  -- This takes a deleted entry out of the pending ones.
  redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
  if found[1] then
    for _, part in ipairs(found[1][2]) do size = size + #part end
    entries[#entries + 1] = { id, found[1][2], deliveries }
  else
    lost[#lost + 1] = id
  end
end
if #abandoned == limit then return { '(' .. abandoned[limit][1], entries, lost } end
return { '', entries, lost }
