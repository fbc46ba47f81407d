-- Adds a dead letter to the stream of a job, which is to bring the letter back.
--
-- KEYS  kept
-- ARGV  lives (how long all that the job keeps lives, in ms), fields... (of the dead letter)
-- Returns 1. If it runs again, it adds the letter a second time; only the first one is brought back.
begin_call()
local bad = wrong_type(kept, 'stream')
if bad then return bad end
keep(kept, lives, { unpack(ARGV, fields_at) })
return 1
