-- Deletes dead letters, and keeps each in the same step, so that it is in one place at any time.
--
-- KEYS  dead, kept
-- ARGV  lives (how long all that the job keeps lives, in ms), letters... (their entries)
-- Returns how many it deleted. The others are not there (any more), or have more fields than a script can
-- take.
--   Safe to run again.
--
-- Another program's dead letter goes by its entry, which is a new one when it comes back. So it gets its name
-- and time as fields, as in the file of an export.
begin_call()
local bad = wrong_type(dead, 'stream', kept, 'stream')
if bad then return bad end
local deleted = 0
for i = letters_at, #ARGV do
  local found = redis.call('XRANGE', dead, ARGV[i], ARGV[i])[1]
  if found and #found[2] <= 6800 then
    local fields = found[2]
    if not value_in(fields, 'tq-reason') then
      if not value_in(fields, 'tq-id') then append(fields, 'tq-id', 'foreign-' .. ARGV[i]) end
      if not value_in(fields, 'tq-failed-at') then
        append(fields, 'tq-failed-at', (string.match(ARGV[i], '^%d+')))
      end
    end
    keep(kept, lives, fields)
    redis.call('XDEL', dead, ARGV[i])
    deleted = deleted + 1
  end
end
return deleted
