-- Adds to what a job keeps a dead letter that it is to bring back.
--
-- KEYS  kept
-- ARGV  lives (how long all that the job keeps lives, in ms), fields... (of the dead letter)
-- Returns 1. If it runs again it adds the dead letter again, of which only the first one is brought back.
begin_call()
local bad = wrong_type(kept, 'stream')
if bad then return bad end
keep(kept, lives, { unpack(ARGV, fields_at) })
return 1
