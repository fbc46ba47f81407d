-- Ends a task whose entry was deleted.
--
-- KEYS  stream, status (of the task that had the entry's id), marker (that this status names)
-- ARGV  group, retention, window, entry
-- Returns 1 when the task was ended, else 0. A task whose producer chose its id cannot be found by its entry.
-- A task that was never begun gets its first status here.
begin_call()
take_told()
return note_lost(status, marker, entry, entry) and 1 or 0
