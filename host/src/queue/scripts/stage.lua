-- Keeps children of a flow until the step that completes their parent starts the flow.
--
-- KEYS  1 the list of the flow's children · 2 the flow
-- ARGV  1 how long (ms) they are kept if the parent does not complete · 2 how many the list holds before this
--       call · then for each child: its queue, the stream, the key of the delayed tasks, the key of their
--       fields, the status, the marker of the idempotency key (the stream: none), the id, the delay ms, how
--       long (ms) an ended task's status is kept, the most tasks that may wait or run there, how many values
--       follow, the fields: names and values
-- Gives how many children the list holds. If it did not hold as many as expected, nothing was written: an
-- earlier call whose reply was lost has added these, or the list is gone. A call that arrives after the flow
-- has started adds nothing either, because its children may have left the list by then.
begin_call()
local at, kept = 3, redis.call('LLEN', KEYS[1])
if kept ~= tonumber(ARGV[2]) or redis.call('EXISTS', KEYS[2]) == 1 then return kept end
while at <= #ARGV do
  local child = { fields = {} }
  local names = { 'queue', 'stream', 'delayed', 'parked', 'status', 'marker', 'id', 'delay', 'retention',
    'most' }
  for i, name in ipairs(names) do
    child[name] = ARGV[at + i - 1]
  end
  local count = tonumber(ARGV[at + 10])
  for i = 1, count do child.fields[i] = ARGV[at + 10 + i] end
  at = at + 11 + count
  kept = redis.call('RPUSH', KEYS[1], cmsgpack.pack(child))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return kept
