-- Counts a page of the delayed tasks by why they wait.
--
-- KEYS  1 delayed · 2 parked
-- ARGV  1 cursor ('0' at first) · 2 about how many to look at
-- Gives the next cursor ('0' when done), how many have been tried or are due, how many their producer
--   delayed, how many belong to flows, and the latest time (ms) at which one of the second kind is due.
--   Writes nothing.
local page = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local tried, timed, flows, latest = 0, 0, 0, 0
for i = 1, #page[2], 2 do
  local member, due = page[2][i], tonumber(page[2][i + 1])
  local fields = parked_fields(redis.call('HGET', KEYS[2], member) or '') or {}
  local attempt = tonumber(value_in(fields, 'tq-attempt') or 1) or 1
  if value_in(fields, 'tq-joins') or value_in(fields, 'tq-flow') then
    flows = flows + 1
  elseif due <= now or attempt > 1 or value_in(fields, 'tq-deferrals') or value_in(fields, 'tq-crashes') then
    tried = tried + 1
  else
    timed, latest = timed + 1, math.max(latest, due)
  end
end
return { page[1], tried, timed, flows, latest }
