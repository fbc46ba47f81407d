-- Notes on its status that a task is lost: somebody deleted its entry.
--
-- KEYS  1 status of the task that had the entry's id
-- ARGV  1 entry · 2 retention ms
-- Gives 1 when it was noted. A task with an id of its own cannot be found by its entry; one that was never begun has no status before this.
return note_lost(KEYS[1], ARGV[1], tonumber(ARGV[2])) and 1 or 0
