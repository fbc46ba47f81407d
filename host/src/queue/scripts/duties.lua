-- Renews a host's lease of duties, and takes the duties that no living host has.
--
-- KEYS  1 holders: duty → host · 2 hosts by the time when their lease ends
-- ARGV  1 host · 2 lease ms · 3… the duties that this host can do
-- Gives how many hosts have a lease, and for each duty 1 when this host has it now, 0 when another has it.
--
-- A lease that ends more than two leases from now was granted before the clock went back, and is ignored.
-- Safe to run again.
local now, lease = now_ms(), tonumber(ARGV[2])
redis.call('ZADD', KEYS[2], now + lease, ARGV[1])
local alive, hosts = {}, redis.call('ZRANGEBYSCORE', KEYS[2], now, now + 2 * lease)
for _, host in ipairs(hosts) do alive[host] = true end
local out, taken = {}, {}
-- Lua passes 7,000 values to one call at most.
for from = 3, #ARGV, 1000 do
  local duties = {}
  for i = from, math.min(from + 999, #ARGV) do duties[#duties + 1] = ARGV[i] end
  local holders = redis.call('HMGET', KEYS[1], unpack(duties))
  for i, duty in ipairs(duties) do
    local mine = not alive[holders[i]] or holders[i] == ARGV[1]
    out[#out + 1] = mine and 1 or 0
    if mine and holders[i] ~= ARGV[1] then
      taken[#taken + 1] = duty
      taken[#taken + 1] = ARGV[1]
    end
  end
end
if #taken > 0 then redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now) end
for from = 1, #taken, 2000 do
  redis.call('HSET', KEYS[1], unpack(taken, from, math.min(from + 1999, #taken)))
end
return { #hosts, out }
