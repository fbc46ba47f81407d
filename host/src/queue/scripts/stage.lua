-- Keeps children of a flow until the step that completes their parent starts the flow.
--
-- KEYS  1 the list of the flow's children
-- ARGV  1 how long (ms) they are kept if the parent does not complete · then for each child: its queue, the
--       stream, the key of the delayed tasks, the key of their fields, the status, the marker of the
--       idempotency key (the stream: none), the id, the delay ms, how long (ms) an ended task's status is
--       kept, the most tasks that may wait or run there, how many values follow, the fields: names and values
-- Gives how many children are kept. When a call is repeated after a lost reply, the number is too high, and
-- the flow is refused.
local at, kept = 2, 0
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
