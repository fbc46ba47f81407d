-- Removes consumers that sent no request for long and have no pending entries (XGROUP DELCONSUMER would
-- discard those).
--
-- KEYS  1 stream
-- ARGV  1 group · 2 idle ms beyond which a consumer is gone · 3 how many at most
-- Gives how many were removed.
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return 0 end
local removed = 0
for _, fields in ipairs(consumers) do
  local about = named(fields)
  if removed < tonumber(ARGV[3]) and about['pending'] == 0 and about['idle'] > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], about['name'])
    removed = removed + 1
  end
end
return removed
