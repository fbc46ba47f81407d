-- Keeps dead letters for a job. A purge deletes each in the same step, so that it is in one place at any
-- time. An export leaves it, and the copy has the entry of the original. They are copied in their order, so
-- XADD refuses a copy that is there already.
--
-- KEYS  dead, kept
-- ARGV  lives (how long all that the job keeps lives, in ms), deletes (1: it is a purge), letters... (their
--       entries)
-- Returns how many the job keeps. The others are not there (any more), or have more fields than a script can
-- take.
--   Safe to run again.
--
-- Another program's dead letter goes by its entry, which is a new one when it comes back. So it gets its name
-- and time as fields, as in the file of an export.
begin_call()
local bad = wrong_type(dead, 'stream', kept, 'stream')
if bad then return bad end
local taken = 0
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
    if deletes == '1' then
      keep(kept, lives, fields)
      redis.call('XDEL', dead, ARGV[i])
    else
      local copied = redis.pcall('XADD', kept, ARGV[i], unpack(fields))
      local failed = type(copied) == 'table' and copied.err
      if failed and not string.find(failed, 'equal or smaller', 1, true) then return copied end
      redis.call('PEXPIRE', kept, lives)
    end
    taken = taken + 1
  end
end
return taken
