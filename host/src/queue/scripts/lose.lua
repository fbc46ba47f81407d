-- Ends a task whose entry was deleted.
--
-- KEYS  stream, status (of the task that had the entry's id), marker (that this status names)
-- ARGV  group, retention, window, entry
-- Returns 1 when it was ended, else 0. A task with an id of its own cannot be found by its entry; a task that
--   was never begun has no status before this.
begin_call()
take_told()
return note_lost(status, marker, entry, entry) and 1 or 0
