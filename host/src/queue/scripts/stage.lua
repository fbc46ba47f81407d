-- Keeps children of a flow until the step that completes their parent starts the flow.
--
-- KEYS  children (the list of the flow's children), flow
-- ARGV  lives (how long, in ms, they are kept if the parent does not complete), expected (how many the list
--       holds before this call), children...
-- Returns how many children the list holds. If it did not hold as many as expected, nothing was written: an
-- earlier call whose reply was lost has added these, or the list is gone. A call that arrives after the flow
-- has started adds nothing either, because its children may have left the list by then.

-- A child, as it stands in the list.
-- ARGV  queue, stream, delayed, parked, status, marker, id, delay (ms), retention (how long, in ms, an ended
--       task's status is kept), most (how many tasks may wait or run there), fields[]
local child = {}

begin_call()
local kept = redis.call('LLEN', children)
if kept ~= tonumber(expected) or redis.call('EXISTS', flow) == 1 then return kept end
value_at = children_at
while value_at <= #ARGV do kept = redis.call('RPUSH', children, cmsgpack.pack(child.read())) end
redis.call('PEXPIRE', children, lives)
return kept
