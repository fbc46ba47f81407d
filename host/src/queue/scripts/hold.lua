-- Counts the failures of a queue for a cause outside, holds the queue when there are too many in a row, and
-- lends the one probe of a held queue: the right to try a task.
--
-- KEYS  state (JSON with the fields below; expires a day after its last change)
-- ARGV  what (see below), after (how many failures in a row begin a hold), pause (for how long, ms),
--       consumer, is_probe (1: it was the probe), lease (of the probe, ms); each failure: entry, asked (how
--       long, in ms, the service asks to wait), cause, id (of the task), failing_since (ms; 0: it did not
--       fail like this before)
--
-- `what` says what has happened:
--   failed     an attempt failed for a cause outside (only this call has a failure)
--   through    an attempt got through
--   ask        this consumer asks for the probe
--   keep       it renews the lease of the probe (lease 0: it gives the probe back)
--   silent     the probe ended without an answer of the service
--
-- Returns 0: the queue is open, 1: it is held, 2: it is held, and this consumer has the probe; then the ms
-- until the probe may be asked for; then, after a failure, 1 if this task alone fails while others get
-- through, 2 if others got through after its first failure, but it is not alone, else 0; and the time (ms).
--
-- Fields of the state. All times are in ms:
--   entries        while the queue is open: the failures in a row
--   since, cause   while it is held: since when, and why
--   last           while it is held: the time from which `pause` counts
--   prober, lease  while it is held: the consumer with the probe, and until when it has the probe
--   asked          the time until which the service asks to wait
--   through        when an attempt last got through after failures
--   task, others   the task that has failed since then, and true if others have, too
--
-- A task that fails alone, although others got through after its first failure, is what makes the service
-- fail: it is not one of the failures that hold the queue. Of several such tasks none is alone, but each
-- keeps the count of its failures, so that in the end they are charged.
--
-- A second call with the same entry is not counted again, and every other call may be repeated. If the clock
-- was put back, no time counts as further away than it can be.
begin_call()
local LONGEST_ASKED = 3600000
local DAY = 86400000
after, pause, lease = tonumber(after), tonumber(pause), tonumber(lease)

local is_read, hold = pcall(cjson.decode, redis.call('GET', state) or '{}')
if not is_read or type(hold) ~= 'table' then hold = {} end

local function write()
  redis.call('SET', state, cjson.encode(hold), 'PX', DAY)
end

-- Whether others got through after the first failure of the task that failed now, and whether only this task
-- fails.
local others_got_through, is_alone = false, false

-- How long (ms) nobody may try a task.
local function wait()
  if not hold.since then return 0 end
  local ends = math.min(hold.last, now) + pause
  return math.max(0, ends - now, math.min(hold.asked or 0, now + LONGEST_ASKED) - now)
end

local function count_failure()
  local since = tonumber(failing_since)
  hold.others = hold.others or hold.task and hold.task ~= id or nil
  hold.task = hold.task or id
  others_got_through = since > 0 and (hold.through or 0) > since
  is_alone = others_got_through and not hold.others
  if not hold.since then
    hold.entries = hold.entries or {}
    local is_counted = is_alone
    for _, known in ipairs(hold.entries) do is_counted = is_counted or known == entry end
    if not is_counted then append(hold.entries, entry) end
    if #hold.entries >= after then
      hold = {
        since = now, last = now, asked = hold.asked, through = hold.through, task = hold.task,
        others = hold.others,
      }
    end
  elseif is_probe == '1' then
    hold.last = now
    if hold.prober == consumer then hold.prober, hold.lease = nil, nil end
  end
  if hold.since then hold.cause = cause end
  hold.asked = math.max(hold.asked or 0, now + tonumber(asked))
  write()
end

if what == 'failed' then
  each_failure(count_failure)
elseif what == 'through' then
  if hold.task and not hold.since or is_probe == '1' then
    hold = { through = now }
    write()
  end
elseif what == 'ask' then
  if hold.since and wait() == 0 then
    local left = hold.prober and hold.prober ~= consumer and math.min(hold.lease, now + lease) - now or 0
    if left > 0 then return { 1, left, 0, now } end
    hold.prober, hold.lease = consumer, now + lease
    write()
    return { 2, 0, 0, now }
  end
elseif what == 'silent' then
  if hold.prober == consumer then
    hold.last, hold.prober, hold.lease = now, nil, nil
    write()
  end
elseif hold.since and hold.prober == consumer then
  hold.prober, hold.lease = lease > 0 and consumer or nil, lease > 0 and now + lease or nil
  write()
end
return { hold.since and 1 or 0, wait(), is_alone and 1 or others_got_through and 2 or 0, now }
