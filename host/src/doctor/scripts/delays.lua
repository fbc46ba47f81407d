-- Counts a page of the delayed tasks by why they wait.
--
-- KEYS  1 delayed · 2 parked
-- ARGV  1 cursor ('0' at first) · 2 about how many to look at
-- Gives the next cursor ('0' when done), how many are due or wait for another attempt, how many their
--   producer delayed, how many belong to flows, the latest time (ms) at which one of those that their
--   producer delayed is due, and how many are held. Writes nothing.
--
-- Only what a producer delayed says when it is due, and only until it runs: an attempt that is not charged
-- leaves a task at its first attempt.
local page = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local tried, timed, flows, latest, held = 0, 0, 0, 0, 0
for i = 1, #page[2], 2 do
  local fields = parked_fields(redis.call('HGET', KEYS[2], page[2][i]) or '') or {}
  local due = tonumber(value_in(fields, 'tq-due-at') or 0) or 0
  if value_in(fields, 'tq-joins') or value_in(fields, 'tq-flow') then
    flows = flows + 1
  elseif page[2][i + 1] == HELD then
    held = held + 1
  elseif due <= now then
    tried = tried + 1
  else
    timed, latest = timed + 1, math.max(latest, due)
  end
end
return { page[1], tried, timed, flows, latest, held }
