-- Keeps dead letters for a job. A purge deletes each in the same step, so that it is in one place at any
-- time. An export leaves it, and the copy has the same entry. Letters are copied in their order, so XADD
-- refuses a copy that is there already.
--
-- KEYS  dead, kept
-- ARGV  lives (how long all that the job keeps lives, in ms), deletes (1: it is a purge), letters... (their
--       entries)
-- Returns how many of them the job keeps. The others are not there (any more), or have more fields than a
-- script can take. Safe to run again.
--
-- The dead letter of another program has its id and its time only in its entry, and gets a new entry when it
-- comes back. So both are added as fields, as in the file of an export.
begin_call()
local bad = wrong_type(dead, 'stream', kept, 'stream')
if bad then return bad end
local taken = 0
for i = letters_at, #ARGV do
  local letter = ARGV[i]
  local fields = fields_in(dead, letter)
  if fields and #fields <= 6800 then
    if not value_in(fields, 'tq-reason') then
      if not value_in(fields, 'tq-id') then append(fields, 'tq-id', 'foreign-' .. letter) end
      if not value_in(fields, 'tq-failed-at') then
        append(fields, 'tq-failed-at', (string.match(letter, '^%d+')))
      end
    end
    if deletes == '1' then
      keep(kept, lives, fields)
      redis.call('XDEL', dead, letter)
    else
      local copied = redis.pcall('XADD', kept, letter, unpack(fields))
      local failed = type(copied) == 'table' and copied.err
      if failed and not string.find(failed, 'equal or smaller', 1, true) then return copied end
      redis.call('PEXPIRE', kept, lives)
    end
    taken = taken + 1
  end
end
return taken
