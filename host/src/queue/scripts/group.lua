-- Checks the keys of a queue. Creates the consumer group, at the beginning of the stream, and the stream,
-- where they are missing. Notes once for each group which entry it was given last before tqhost came.
--
-- KEYS  1 stream · 2 delayed · 3 parked · 4 dead letters
--       5 history: group → the last entry that it was given before (0-0: tqhost made the group)
--       6 adopted: another group → when an operator confirmed that its entries may be deleted
--       7 list (the stream: the queue has none)
-- ARGV  1 group · 2… the commands that hosts send themselves
-- Gives 1 when it created the group, 0 when the group existed. Gives an error, and writes nothing, if the
--   user may not run all commands (TQRIGHTS, and their names), a key has another type (TQTYPE), or the stream
--   has groups that nobody has confirmed (TQGROUP, and their names).
--
-- A group that is created again is given every entry again, so none of them is history. Safe to run again.
begin_call()

-- The commands of all scripts; ARGV has the others. A script that is refused one of them after its first
-- write leaves its task half settled, so a host asks for all of them before it takes a task.
local COMMANDS = [[
  XACK XADD XCLAIM XDEL XGROUP|CREATE XGROUP|DELCONSUMER XGROUP|SETID XINFO|CONSUMERS XINFO|GROUPS
  XINFO|STREAM XLEN XPENDING XRANGE XREADGROUP
  COPY DEL EXISTS GET HDEL HEXISTS HGET HGETALL HINCRBY HLEN HMGET HSCAN HSET HSETNX INCRBY LINDEX LLEN
  LPOP MSET PERSIST PEXPIRE PTTL RPOP RPUSH SET TIME TYPE UNLINK ZADD ZCARD ZCOUNT ZLEXCOUNT
  ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGEBYLEX ZSCAN
  ZSCORE
]]
local denied = {}
local asked = COMMANDS .. table.concat(ARGV, ' ', 2)
for name in string.gmatch(redis.acl_check_cmd and asked or '', '%S+') do
  local command, part = string.match(name, '^([%w_]+)|?(%w*)$')
  local args = { string.sub(command, 1, 1) == 'X' and stream or KEYS[2] }
  if part ~= '' then table.insert(args, 1, part) end
  if command == 'BLMOVE' or command == 'COPY' then append(args, args[1]) end
  if command == 'EVALSHA' or command == 'EVALSHA_RO' then args = { '', '0' } end
  if command == 'XREAD' then args = { 'STREAMS', stream, '$' } end
  if command == 'XREADGROUP' then args = { 'GROUP', group, 'consumer', 'STREAMS', stream, '>' } end
  if not redis.acl_check_cmd(command, unpack(args)) then append(denied, name) end
end
if #denied > 0 then return redis.error_reply('TQRIGHTS ' .. table.concat(denied, ', ')) end

local bad = wrong_type(stream, 'stream', KEYS[2], 'zset', KEYS[3], 'hash', KEYS[4], 'stream', KEYS[5], 'hash',
  KEYS[6], 'hash') or KEYS[7] ~= stream and wrong_type(KEYS[7], 'list')
if bad then return bad end

local last, others = nil, {}
for _, fields in ipairs(redis.pcall('XINFO', 'GROUPS', stream)) do
  local about = named(fields)
  if about['name'] == group then
    last = about['last-delivered-id']
  elseif redis.call('HEXISTS', KEYS[6], about['name']) == 0 and #others < 10 then
    append(others, about['name'])
  end
end
if #others > 0 then return redis.error_reply('TQGROUP ' .. table.concat(others, ', ')) end

if last then
  redis.call('HSETNX', KEYS[5], group, last)
  return 0
end
local created = redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
if created.err then return created end
redis.call('HSET', KEYS[5], group, '0-0')
return 1
