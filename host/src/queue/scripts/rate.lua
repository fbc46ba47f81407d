-- Takes places in a queue's rate, which all hosts share; or gives back places that were not used.
--
-- KEYS  rate (the time, in microseconds, up to which places are taken; each place takes one step)
-- ARGV  step (microseconds from one place to the next), ahead (how many steps the time above may be ahead of
--       now), want (how many places; negative: how many are given back)
-- Returns how many were taken, and the ms until the next one is free (0 when some were taken or given back).
--
-- If the clock was put back, that time lies too far in the future, and the queue would wait until then. When
-- it is ahead by more than twice the steps that it may be, the rate begins again at the present.
begin_call()
local time = clock[1] * 1000000 + clock[2]
step, ahead, want = tonumber(step), tonumber(ahead), tonumber(want)
local due = tonumber(redis.call('GET', rate)) or 0
if due < time or due > time + step * (ahead + 1) * 2 then due = time end
local taken = 0
if want < 0 then
  due = math.max(time, due + want * step)
else
  taken = math.max(0, math.min(want, math.floor((time + ahead * step - due) / step)))
  due = due + taken * step
end
redis.call('SET', rate, string.format('%.0f', due), 'PX', math.ceil((due - time) / 1000) + 1000)
if taken > 0 or want < 0 then return { taken, 0 } end
return { 0, math.ceil((due + step - time - ahead * step) / 1000) }
