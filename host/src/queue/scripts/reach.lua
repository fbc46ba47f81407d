-- Does nothing with its keys: Redis itself refuses the call when the user may not read and write them.
--
-- KEYS  keys... (any)
-- Returns 1. Safe to run again.
begin_call()
return 1
