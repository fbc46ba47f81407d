-- Renews a host's lease of duties, and gives it the duties that no living host has.
--
-- KEYS  holders (duty → host), hosts (by the time when their lease ends)
-- ARGV  host, lease, duties... (of the queues that this host serves)
-- Returns how many hosts have a lease, and for each duty 1 when this host has it now, 0 when another has it.
--
-- A lease that ends more than two leases from now was granted before the clock went back, and is ignored.
-- Safe to run again.
begin_call()
redis.call('ZADD', hosts, now + lease, host)
redis.call('ZREMRANGEBYSCORE', hosts, '-inf', now)
local alive, out, living = {}, {}, redis.call('ZRANGEBYSCORE', hosts, now, now + 2 * lease)
for _, name in ipairs(living) do alive[name] = true end
-- Lua passes 7,000 values to one call at most.
for from = duties_at, #ARGV, 1000 do
  local some = { unpack(ARGV, from, math.min(from + 999, #ARGV)) }
  for i, holder in ipairs(redis.call('HMGET', holders, unpack(some))) do
    local is_taken = alive[holder] and holder ~= host
    append(out, is_taken and 0 or 1)
    if not is_taken and holder ~= host then redis.call('HSET', holders, some[i], host) end
  end
end
return { #living, out }
