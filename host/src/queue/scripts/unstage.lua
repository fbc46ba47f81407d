-- Deletes the staged children of a flow whose parent did not complete.
--
-- KEYS  children (the list of the flow's children)
-- Returns 1 if it deleted them, otherwise 0. A list that does not expire belongs to a flow that has started,
-- and stays.
begin_call()
if redis.call('PTTL', children) < 0 then return 0 end
return redis.call('UNLINK', children)
