-- Puts jobs of Sidekiq that are due into the list of their queue, the earliest first, as Sidekiq's own poller
-- does. The jobs of other queues stay.
--
-- KEYS  set (jobs by the time, in seconds, when they are due), list
-- ARGV  name (of the queue, as Sidekiq knows it), from (how many jobs that are due are passed over), limit
-- Returns how many were moved, and how many are to be passed over by the next call (-1: no more are due).
--
-- Safe to run again, and beside Sidekiq: a job that somebody else has taken is not in the set any more. No
-- name of a list is read from a job.
begin_call()
local bad = wrong_type(set, 'zset', list, 'list')
if bad then return bad end
local seconds, moved = string.format('%.3f', now / 1000), 0
local due = redis.call('ZRANGEBYSCORE', set, '-inf', seconds, 'LIMIT', from, limit)
for _, job in ipairs(due) do
  -- Jobs of others, and those that are too large for a task, are not worth reading.
  local may_be_own = #job <= 16777216 and string.find(job, name, 1, true)
  local is_read, content = pcall(cjson.decode, may_be_own and job or '')
  local is_own = is_read and type(content) == 'table' and content.queue == name
  if is_own and redis.call('ZREM', set, job) == 1 then
    redis.call('LPUSH', list, job)
    moved = moved + 1
  end
end
return { moved, #due < tonumber(limit) and -1 or tonumber(from) + #due - moved }
