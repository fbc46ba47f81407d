-- Ends a task whose entry was deleted.
--
-- KEYS  1 stream · 2 status of the task that had the entry's id · 3 marker that this status names (the
--       stream: none)
-- ARGV  1 group · 2 retention ms · 3 window ms · 4 entry
-- Gives 1 when it was ended, else 0. A task with an id of its own cannot be found by its entry; a task that
--   was never begun has no status before this.
begin_call()
take_told()
return note_lost(KEYS[2], KEYS[3], ARGV[4], ARGV[4]) and 1 or 0
