-- Turns items that producers LPUSHed to lists into tasks: all of the first list before the next one, and the
-- oldest item of a list first.
--
-- KEYS  stream, delayed, lists... (the most urgent one first)
-- ARGV  group, limit, most (tasks that may wait or run), items (their form, as the configuration names it),
--       ahead (how many entries may wait in the stream until a host is given them; 0: any number), bytes
-- Returns how many were moved. At any moment an item is in the list or in the stream. A full queue takes
-- nothing.
--
-- An id that Celery or Sidekiq gave a task is its id here. Hosts read the rest of an item, and bury one that
-- cannot be read.

-- The id in an item, or nil. An item that is too large for a task is not read: hosts bury it.
local function id_in(item)
  if #item > 16777216 then return nil end
  local is_read, content = pcall(cjson.decode, item)
  if not is_read or type(content) ~= 'table' then return nil end
  local holder, name = content, 'jid'
  if items == 'celery' then holder, name = content.headers, 'id' end
  local id = type(holder) == 'table' and holder[name]
  return type(id) == 'string' and id ~= '' and #id <= 256 and id or nil
end

-- How many entries no host was given yet: at most those that are not pending. A consumer before tqhost may
-- have left some of these that it acknowledged, which Redis's own count (`lag`) leaves out.
local function unread()
  local pending = redis.pcall('XPENDING', stream, group)
  local most = redis.call('XLEN', stream) - (pending[1] or 0)
  for _, fields in ipairs(redis.pcall('XINFO', 'GROUPS', stream)) do
    local about = named(fields)
    if about.name == group and about.lag then return math.min(most, about.lag) end
  end
  return most
end

begin_call()
local bad = wrong_type(stream, 'stream')
for i = lists_key, #KEYS do bad = bad or wrong_type(KEYS[i], 'list') end
if bad then return bad end
local free, moved = math.min(room(most), tonumber(limit)), 0
if ahead ~= '0' then free = math.min(free, tonumber(ahead) - unread()) end
local has_id, size = items == 'celery' or items == 'sidekiq', 0
for i = lists_key, #KEYS do
  local list = KEYS[i]
  while moved < free and size < tonumber(bytes) do
    local item = redis.call('LINDEX', list, -1)
    if not item then break end
    local id, fields = has_id and id_in(item), { 'data', item }
    if id then append(fields, 'tq-id', id) end
    redis.call('XADD', stream, '*', unpack(fields))
    redis.call('RPOP', list)
    moved, size = moved + 1, size + #item
  end
end
return moved
