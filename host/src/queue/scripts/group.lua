-- Checks the keys of a queue. Creates the consumer group, at the beginning of the stream, and the stream,
-- where they are missing. Notes once for each group which entry it was given last before tqhost came.
--
-- KEYS  stream, delayed, parked, dead, history, adopted, list
-- ARGV  group, commands... (sent by hosts outside of scripts)
-- Returns 1 when it created the group, 0 when the group existed. Returns an error, and writes nothing, if the
--   user may not run all commands (TQRIGHTS, and their names), a key has another type (TQTYPE), or the stream
--   has groups that nobody has confirmed (TQGROUP, and their names).
--
-- A group that is created again is given every entry again, so none of them is history. Safe to run again.
begin_call()

-- The commands of all scripts; `commands` are those that hosts send. A script that is refused a command after
-- its first write leaves its task half settled, so a host asks for the rights to all before it takes a task.
local COMMANDS = [[
  XACK XADD XCLAIM XDEL XGROUP|CREATE XGROUP|DELCONSUMER XGROUP|SETID XINFO|CONSUMERS XINFO|GROUPS
  XINFO|STREAM XLEN XPENDING XRANGE XREADGROUP
  COPY DEL EXISTS GET HDEL HEXISTS HGET HGETALL HINCRBY HLEN HMGET HSCAN HSET HSETNX INCRBY LINDEX LLEN
  LPOP LPUSH MSET PERSIST PEXPIRE PTTL RPOP RPUSH SET TIME TYPE UNLINK ZADD ZCARD ZCOUNT ZLEXCOUNT
  ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGEBYLEX ZSCAN
  ZSCORE
]]
-- Asks Redis about each command with arguments that it takes, on a key of this queue.
local denied = {}
local asked = COMMANDS .. table.concat(ARGV, ' ', commands_at)
for name in string.gmatch(redis.acl_check_cmd and asked or '', '%S+') do
  local command, part = string.match(name, '^([%w_]+)|?(%w*)$')
  local args = { string.sub(command, 1, 1) == 'X' and stream or delayed }
  if part ~= '' then table.insert(args, 1, part) end
  if command == 'BLMOVE' or command == 'COPY' then append(args, args[1]) end
  if command == 'EVALSHA' or command == 'EVALSHA_RO' then args = { '', '0' } end
  if command == 'XREAD' then args = { 'STREAMS', stream, '$' } end
  if command == 'XREADGROUP' then args = { 'GROUP', group, 'consumer', 'STREAMS', stream, '>' } end
  if not is_allowed(command, unpack(args)) then append(denied, name) end
end
if #denied > 0 then return redis.error_reply('TQRIGHTS ' .. table.concat(denied, ', ')) end

local bad = wrong_type(stream, 'stream', delayed, 'zset', parked, 'hash', dead, 'stream', history, 'hash',
  adopted, 'hash') or list ~= stream and wrong_type(list, 'list')
if bad then return bad end

local last, others = nil, {}
for _, fields in ipairs(redis.pcall('XINFO', 'GROUPS', stream)) do
  local about = named(fields)
  if about['name'] == group then
    last = about['last-delivered-id']
  elseif redis.call('HEXISTS', adopted, about['name']) == 0 and #others < 10 then
    append(others, about['name'])
  end
end
if #others > 0 then return redis.error_reply('TQGROUP ' .. table.concat(others, ', ')) end

if last then
  redis.call('HSETNX', history, group, last)
  return 0
end
local created = redis.pcall('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
if created.err then return created end
redis.call('HSET', history, group, '0-0')
return 1
