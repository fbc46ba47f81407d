-- Ends a task whose entry was deleted.
--
-- KEYS  1 stream · 2 status of the task that had the entry's id · 3 marker that this status names (the
--       stream: none)
-- ARGV  1 entry · 2 retention ms
-- Gives 1 when it was ended, else 0. A task with an id of its own cannot be found by its entry; a task that
--   was never begun has no status before this.
return note_lost(rules_of(KEYS[1], nil, ARGV[2], 0), KEYS[2], KEYS[3], ARGV[1], ARGV[1]) and 1 or 0
