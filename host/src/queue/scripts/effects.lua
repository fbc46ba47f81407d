-- The kinds of effects that commit with the end of a task. This file stands behind turns.lua, in front of
-- every script; settle.lua uses it.
--
-- Each kind names the keys and arguments from which it is read, as lib.lua says, and says why it cannot be
-- committed (a text, or nil), how it is committed, and how it is taken back if it left something before.
local effects = {}

-- The key and the argument of a call that is read next.
local key_at, value_at

local function next_key()
  key_at = key_at + 1
  return KEYS[key_at - 1]
end

local function next_value()
  value_at = value_at + 1
  return ARGV[value_at - 1]
end

local function next_list()
  local list = {}
  for i = 1, tonumber(next_value()) do list[i] = next_value() end
  return list
end

-- Sets a value of the state.
-- KEYS  key
-- ARGV  value, ttl (ms; 0: none)
effects.S = {
  refusal = function() end,
  commit = function(one)
    if one.ttl == '0' then
      redis.call('SET', one.key, one.value)
    else
      redis.call('SET', one.key, one.value, 'PX', one.ttl)
    end
  end,
}

-- Deletes a value of the state.
-- KEYS  key
effects.D = {
  refusal = function() end,
  commit = function(one) redis.call('DEL', one.key) end,
}

-- Adds to a counter of the state. Of numbers with at most 18 digits no sum overflows.
-- KEYS  key
-- ARGV  delta
effects.A = {
  refusal = function(one)
    local value = redis.pcall('GET', one.key)
    -- INCRBY refuses leading zeros.
    local digits = value == '0' and value
      or type(value) == 'string' and string.match(value, '^%-?([1-9]%d*)$')
    if value and not (digits and #digits <= 18) then
      return 'the counter ' .. one.key .. ' holds no whole number of at most 18 digits'
    end
  end,
  commit = function(one) redis.call('INCRBY', one.key, one.delta) end,
}

-- Deletes a record (1), sets its fields, and its time to live in ms (-1: as before, 0: none).
-- KEYS  key
-- ARGV  deletes, ttl, fields[]
effects.H = {
  refusal = function(one)
    local bad = wrong_type(one.key, 'hash')
    return bad and bad.err
  end,
  commit = function(one)
    if one.deletes == '1' then redis.call('UNLINK', one.key) end
    if #one.fields > 0 then redis.call('HSET', one.key, unpack(one.fields)) end
    if one.ttl == '0' then
      redis.call('PERSIST', one.key)
    elseif one.ttl ~= '-1' then
      redis.call('PEXPIRE', one.key, one.ttl)
    end
  end,
}

-- Enqueues a task.
-- KEYS  stream, delayed, parked, status, marker
-- ARGV  id, delay, retention, fields[]
effects.T = {
  refusal = function(one)
    local bad = wrong_type(one.stream, 'stream', one.delayed, 'zset', one.parked, 'hash')
    return bad and bad.err
  end,
  commit = enqueue,
}

-- Leaves a task for a queue in another slot of a cluster, to which a host takes it.
-- KEYS  out
-- ARGV  fields[]
effects.O = {
  refusal = function(one)
    local bad = wrong_type(one.out, 'stream')
    return bad and bad.err
  end,
  commit = function(one) redis.call('XADD', one.out, '*', 'by', told.by, unpack(one.fields)) end,
}

-- Starts a flow, whose children are staged. The task that joins it is held by the flow.
-- KEYS  about, children, stream, delayed, parked, dead, status, marker
-- ARGV  id, total, group, delay, retention, fields[]
effects.F = {
  refusal = function(one)
    local bad = wrong_type(one.stream, 'stream', one.delayed, 'zset', one.parked, 'hash')
    if bad then return bad.err end
    if redis.call('LLEN', one.children) ~= tonumber(one.total) then
      return 'the children of the flow are not complete any more'
    end
  end,
  commit = function(one)
    redis.call('PERSIST', one.children)
    redis.call('HSET', one.about, 'total', one.total, 'left', one.total, 'stream', one.stream,
      'delayed', one.delayed, 'parked', one.parked, 'dead', one.dead, 'group', one.group,
      'status', one.status, 'marker', one.marker, 'id', one.id, 'delay', one.delay,
      'retention', one.retention, 'fields', cmsgpack.pack(one.fields))
    redis.call('HSET', one.status, 'status', 'PENDING', 'attempt', 1, 'enqueued_at', now, 'enqueued', '1',
      'joins', one.about)
    -- promote.lua releases the children.
    redis.call('ZADD', one.delayed, now, 'flow/' .. one.id)
    redis.call('HSET', one.parked, 'flow/' .. one.id, cmsgpack.pack({ 'tq-joins', one.about }))
  end,
  take_back = function(one) redis.call('UNLINK', one.children) end,
}

-- Reads the effects of an attempt: how many there are, and for each its kind and what this kind reads.
function effects.read()
  local all = {}
  for i = 1, tonumber(next_value()) do
    local kind = effects[next_value()]
    all[i] = kind.read()
    all[i].kind = kind
  end
  return all
end

-- Why effects cannot be committed, or nil.
function effects.refusal_of(all)
  for _, one in ipairs(all) do
    local why = one.kind.refusal(one)
    if why then return 'TQEFFECT ' .. why end
  end
end
