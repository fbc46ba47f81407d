-- Puts messages that workers of Celery had taken and not acknowledged back to the end of a list that is read
-- first.
--
-- KEYS  unacked (delivery tag → message, exchange and routing key, as JSON), index (tags by when they were
--       taken), list
-- ARGV  each message: tag, value (that was found under the tag), item (the message in it)
-- Returns how many were put back. Safe to run again, and beside Celery: what somebody else has put back or
-- acknowledged is not there any more.
begin_call()
local bad = wrong_type(unacked, 'hash', index, 'zset', list, 'list')
if bad then return bad end
local done = 0
each_message(function()
  if redis.call('HGET', unacked, tag) ~= value then return end
  redis.call('RPUSH', list, item)
  redis.call('HDEL', unacked, tag)
  redis.call('ZREM', index, tag)
  done = done + 1
end)
return done
