-- Renews a host's lease of duties, and takes the duties that no living host has.
--
-- KEYS  1 holders: duty → host · 2 hosts by the time when their lease ends
-- ARGV  1 host · 2 lease ms · 3… the duties that this host can do
-- Gives how many hosts have a lease, and for each duty 1 when this host has it now, 0 when another has it.
--
-- A lease that ends more than two leases from now was granted before the clock went back, and is ignored.
-- Safe to run again.
begin_call()
local host, lease = ARGV[1], tonumber(ARGV[2])
redis.call('ZADD', KEYS[2], now + lease, host)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local alive, out, hosts = {}, {}, redis.call('ZRANGEBYSCORE', KEYS[2], now, now + 2 * lease)
for _, name in ipairs(hosts) do alive[name] = true end
-- Lua passes 7,000 values to one call at most.
for from = 3, #ARGV, 1000 do
  local duties = { unpack(ARGV, from, math.min(from + 999, #ARGV)) }
  for i, holder in ipairs(redis.call('HMGET', KEYS[1], unpack(duties))) do
    local is_taken = alive[holder] and holder ~= host
    append(out, is_taken and 0 or 1)
    if not is_taken and holder ~= host then redis.call('HSET', KEYS[1], duties[i], host) end
  end
end
return { #hosts, out }
