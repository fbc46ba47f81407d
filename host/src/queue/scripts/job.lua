-- Looks at a job, and changes it if it is still as the caller saw it.
--
-- KEYS  orders
-- ARGV  field, before (empty: there is no such job yet), after (empty: only look)
-- Returns the time in ms, and the job as it is now; empty if there is none. Safe to run again: the caller
-- finds its own change.
begin_call()
local job = redis.call('HGET', orders, field) or ''
if job == before and after ~= '' then
  redis.call('HSET', orders, field, after)
  job = after
end
return { now, job }
