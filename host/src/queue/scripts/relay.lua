-- Enqueues tasks that queues in other slots of a cluster have left for this one.
--
-- KEYS  tasks... (for each the keys of an effect of the kind T; effects.lua)
-- ARGV  ends (until when, in ms, the call counts), tasks... (for each the kind of an effect, and what this
--       kind reads)
-- Returns nil if the call came too late. Otherwise it returns one value for each task: 1, or the text of the
-- error because of which the task was not enqueued.
--
-- A task whose id has a status was enqueued before, and stays as it is. A status lives for a minute or more
-- after the end of its task. So a call that is sent long after its host read the tasks must not count: a task
-- may have been enqueued, have ended, and have lost its status since.
begin_call()
if now > tonumber(ends) then return false end
key_at, value_at = tasks_key, tasks_at
local out = {}
while value_at <= #ARGV do
  local kind = effects[next_value()]
  local new = kind.read()
  out[#out + 1] = try(function()
    local bad = wrong_type(new.status, 'hash')
    local why = bad and bad.err or kind.refusal(new)
    if why then return why end
    if redis.call('EXISTS', new.status) == 0 then kind.commit(new) end
    return 1
  end)
end
return out
