"""What runs on the server: constants, with all values in ARGV. ARGV[1] is the prefix of every name.

    record  KIND:TAG:NAME        its text: checksum, group, "\\n", value (see redis_store)
    lease   lease:TAG:NAME       FENCE:CLAIM, as long as it is held
            fence:TAG:NAME       the newest fence, or one more: it was released; it outlives the lease a day
    counter counter:TAG:NAME     hash: slot, used, before
    places  places:TAG:NAME      sorted set: member, end in ms
    index   index:TAG:KIND       sorted set of names like KIND:TAG:NAME by their end in ms, of all kinds above
            group:TAG:GROUP      the same, of the records of a group
            kinds:TAG, tags      which indexes there are
    purges                       sorted set: TAG or "TAG GROUP" by the number of the newest purge
    doomed                       sorted set: indexes of what is purged and not deleted yet, "NUMBER:INDEX"
    epoch                        lives as long as the records of the server

A number of a purge, as a fence, is the server's time in µs, or one more than the last: it grows even if the
server has lost everything. `pcall` keeps a key of the wrong type, which something else has written, from
failing a call. Calls that free memory, or take next to none, run on a full server, too (`allow-oom`).
"""

from typing import Final

# A purge is remembered so long by the server: for processes that were cut off from it.
_TOMBSTONE_DAYS: Final = 90

_COMMON: Final = """
local P = ARGV[1]
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

local function is_refused(reply) return type(reply) == 'table' and reply.err ~= nil end

local function read(name)
  local text = redis.pcall('GET', P .. name)
  if is_refused(text) and not string.find(text.err, 'WRONGTYPE') then error(text.err) end
  return type(text) == 'string' and text or nil
end

local function show(number) return string.format('%.0f', number) end

-- Any sorted set; one that something else has replaced is begun anew.
local function add(set, score, member, ttl)
  if is_refused(redis.pcall('ZADD', P .. set, score, member)) then
    redis.call('UNLINK', P .. set)
    redis.call('ZADD', P .. set, score, member)
  end
  if redis.call('PTTL', P .. set) < ttl then redis.call('PEXPIRE', P .. set, ttl) end
end

local indexed = {}
local function index(kind, tag, name, group, ttl)
  local set = 'index:' .. tag .. ':' .. kind
  local member = kind .. ':' .. tag .. ':' .. name
  add(set, now + ttl, member, ttl)
  if group ~= '' then add('group:' .. tag .. ':' .. group, now + ttl, member, ttl) end
  if indexed[set] ~= nil and indexed[set] >= ttl then return end
  indexed[set] = ttl
  redis.call('ZREMRANGEBYSCORE', P .. set, '-inf', now)
  add('kinds:' .. tag, now + ttl, kind, ttl)
  add('tags', now + ttl, tag, ttl)
  redis.call('ZREMRANGEBYSCORE', P .. 'tags', '-inf', now)
end

local function group_of(member)
  local head = redis.pcall('GETRANGE', P .. member, 0, 600)
  return type(head) == 'string' and string.match(head, '^....([^\\n]*)\\n') or nil
end

local function unlist(set, member)
  redis.pcall('ZREM', P .. set, member)
  redis.pcall('ZREMRANGEBYSCORE', P .. set, '-inf', now)
end

local function remove(member)
  local kind, tag = string.match(member, '^([^:]+):([^:]+):')
  if not kind then return end
  local group = group_of(member)
  if group and group ~= '' then unlist('group:' .. tag .. ':' .. group, member) end
  unlist('index:' .. tag .. ':' .. kind, member)
  redis.call('UNLINK', P .. member)
end

local function score(set, member)
  local found = redis.pcall('ZSCORE', P .. set, member)
  return type(found) == 'string' and tonumber(found) or nil
end

local function newest_purge()
  local last = redis.pcall('ZREVRANGE', P .. 'purges', 0, 0, 'WITHSCORES')
  return not is_refused(last) and tonumber(last[2] or 0) or 0
end

-- What the process does not know yet: member, number, member, number…
local function list_purges(known)
  if newest_purge() <= known then return {} end
  return redis.call('ZRANGEBYSCORE', P .. 'purges', '(' .. show(known), '+inf', 'WITHSCORES')
end

local function read_number(name)
  local text = read(name) or ''
  return string.match(text, '^%d+$') and #text <= 16 and tonumber(text) or 0
end

local function newest_fence(tag, name) return read_number('fence:' .. tag .. ':' .. name) end

-- Fence, claim, and the ms that are left; a value that is no lease of ours, or never ends, holds nothing.
local function read_lease(tag, name)
  local key = 'lease:' .. tag .. ':' .. name
  local fence, claim = string.match(read(key) or '', '^(%d+):(%w*)$')
  if not fence or #fence > 16 then return 0, '', 0 end
  return tonumber(fence), claim, math.max(0, redis.call('PTTL', P .. key))
end

local fence_ms = 86400000
local function write_fence(tag, name, fence, ttl)
  redis.call('SET', P .. 'fence:' .. tag .. ':' .. name, show(fence), 'PX', ttl)
  index('fence', tag, name, '', ttl)
end

local function write_lease(tag, name, fence, ttl, claim)
  write_fence(tag, name, fence, fence_ms + ttl)
  redis.call('SET', P .. 'lease:' .. tag .. ':' .. name, show(fence) .. ':' .. claim, 'PX', ttl)
  index('lease', tag, name, '', ttl)
end

-- Deletes so many of what is purged, but nothing that was written since. Whether there is more.
local function sweep(most)
  while most > 0 do
    local item = redis.pcall('ZRANGE', P .. 'doomed', 0, 0)
    if is_refused(item) or not item[1] then return 0 end
    local set = 'doomed:' .. item[1]
    local origin = string.match(item[1], '^%d+:(.*)$') or ''
    local group = string.match(origin, '^group:[^:]+:(.*)$')
    local found = redis.pcall('ZPOPMIN', P .. set, most)
    if is_refused(found) or not found[1] then
      redis.call('UNLINK', P .. set)
      redis.call('ZREM', P .. 'doomed', item[1])
      found = {}
      most = most - 1
    end
    for at = 1, #found, 2 do
      local member = found[at]
      most = most - 1
      if not score(origin, member) and (not group or group_of(member) == group) then
        remove(member)
      end
    end
  end
  return 1
end
"""

_FREE: Final = "#!lua flags=allow-oom,allow-cross-slot-keys\n" + _COMMON

# ARGV: operations, the newest purge that is known, texts of records, which operations name by their place
# (cmsgpack reads no bytes). Returns what became of each operation, and the purges that
# the process did not know. Results: 1 is done, 0 refused because of a purge, -1 the lease is lost; a text is
# what stands there; text and ms left: what was taken.
_WRITE_ALL: Final = (
    _COMMON
    + """
local function is_purged(tag, group, known)
  local number = score('purges', tag)
  if number and number > known then return true end
  number = group ~= '' and score('purges', tag .. ' ' .. group)
  return number and number > known
end

local writing = {}

function writing.put(tag, kind, name, group, known, ttl, at, if_absent, lease, fence)
  if is_purged(tag, group, known) then return 0 end
  local member = kind .. ':' .. tag .. ':' .. name
  local before = if_absent and read(member)
  if before then return before end
  if fence > 0 and newest_fence(tag, lease) > fence then return -1 end
  local old = group_of(member)
  if old and old ~= '' and old ~= group then unlist('group:' .. tag .. ':' .. old, member) end
  redis.call('SET', P .. member, ARGV[at], 'PX', ttl)
  index(kind, tag, name, group, ttl)
  return 1
end

function writing.drop(tag, kind, name)
  remove(kind .. ':' .. tag .. ':' .. name)
  return 1
end

function writing.take(tag, kind, name)
  local member = kind .. ':' .. tag .. ':' .. name
  local text = read(member)
  local left = text and redis.call('PTTL', P .. member)
  remove(member)
  return text and {text, left} or 0
end

function writing.skip() return 0 end

function writing.release(tag, name, fence, channel, message)
  if newest_fence(tag, name) == fence then write_fence(tag, name, fence + 1, fence_ms) end
  if read_lease(tag, name) == fence then
    remove('lease:' .. tag .. ':' .. name)
    redis.call('PUBLISH', channel, message)
  end
  return 1
end

function writing.let_go(tag, name, member)
  redis.pcall('ZREM', P .. 'places:' .. tag .. ':' .. name, member)
  return 1
end

function writing.publish(channel, message)
  redis.call('PUBLISH', channel, message)
  return 1
end

local results = {}
for at, operation in ipairs(cmsgpack.unpack(ARGV[2])) do
  results[at] = writing[operation[1]](unpack(operation, 2))
end
return {results, list_purges(tonumber(ARGV[3]))}
"""
)
WRITE: Final = "#!lua flags=allow-cross-slot-keys\n" + _WRITE_ALL
# The same for a batch without records to put.
WRITE_LITTLE: Final = "#!lua flags=allow-oom,allow-cross-slot-keys\n" + _WRITE_ALL

# ARGV: lists of names like KIND:TAG:NAME. Of each list the first that has a text: its position and the text.
READ: Final = """#!lua flags=no-writes,allow-cross-slot-keys
local found, wrong = {}, 0
for at, names in ipairs(cmsgpack.unpack(ARGV[2])) do
  found[at] = {0, ''}
  for position, name in ipairs(names) do
    local text = redis.pcall('GET', ARGV[1] .. name)
    if type(text) == 'string' then
      found[at] = {position, text}
      break
    elseif type(text) == 'table' then
      if not string.find(text.err, 'WRONGTYPE') then return text end
      wrong = 1
    end
  end
end
return {found, wrong}
"""

# ARGV: tag, name, milliseconds, claim. The same claim again, whose reply was lost, is granted again.
CLAIM: Final = (
    _FREE
    + """
local fence, claim, left = read_lease(ARGV[2], ARGV[3])
local ttl = tonumber(ARGV[4])
if left > 0 and claim ~= ARGV[5] then return {0, show(fence), left} end
if left == 0 then fence = math.max(now_us, newest_fence(ARGV[2], ARGV[3]) + 1) end
write_lease(ARGV[2], ARGV[3], fence, ttl, ARGV[5])
return {1, show(fence), ttl}
"""
)

# ARGV: tag, name, milliseconds, fence. A lease that ran out is still good as long as no other was granted
# since: the server was away, or has lost everything, and no other process is at work.
RENEW: Final = (
    _FREE
    + """
local fence = tonumber(ARGV[5])
if newest_fence(ARGV[2], ARGV[3]) > fence then return 0 end
local _, claim = read_lease(ARGV[2], ARGV[3])
write_lease(ARGV[2], ARGV[3], fence, tonumber(ARGV[4]), claim)
return 1
"""
)

# ARGV: tag, name, cost, most, seconds of the window. See `SlidingWindow`: whether there was room, slot, used,
# before, time.
COUNT: Final = (
    _FREE
    + """
local key = P .. 'counter:' .. ARGV[2] .. ':' .. ARGV[3]
local cost, most, window = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local time = now_us / 1000000
local slot = math.floor(time / window)
local kept = redis.pcall('HMGET', key, 'slot', 'used', 'before')
if is_refused(kept) then
  redis.call('UNLINK', key)
  kept = {}
end
local old, used, before = tonumber(kept[1] or -1), tonumber(kept[2] or 0) or 0, tonumber(kept[3] or 0) or 0
if old == slot - 1 then
  before, used = used, 0
elseif old ~= slot then
  before, used = 0, 0
end
local has_room = cost <= 0 or used + before * (1 - time / window + slot) + cost <= most
if has_room then
  local ttl = math.ceil(window * 2000)
  used = used + cost
  redis.call('HSET', key, 'slot', show(slot), 'used', string.format('%.17g', used),
    'before', string.format('%.17g', before))
  redis.call('PEXPIRE', key, ttl)
  index('counter', ARGV[2], ARGV[3], '', ttl)
end
return {has_room and 1 or 0, show(slot), string.format('%.17g', used), string.format('%.17g', before),
  string.format('%.17g', time)}
"""
)

# ARGV: tag, name, member, most, milliseconds; then the members that give their places back before.
HOLD: Final = (
    _FREE
    + """
local set = 'places:' .. ARGV[2] .. ':' .. ARGV[3]
redis.pcall('ZREMRANGEBYSCORE', P .. set, '-inf', now)
for at = 7, #ARGV do redis.pcall('ZREM', P .. set, ARGV[at]) end
local taken = redis.pcall('ZCARD', P .. set)
if type(taken) == 'number' and taken >= tonumber(ARGV[5]) and not score(set, ARGV[4]) then return 0 end
add(set, now + ARGV[6], ARGV[4], tonumber(ARGV[6]))
index('places', ARGV[2], ARGV[3], '', tonumber(ARGV[6]))
return 1
"""
)

# ARGV: tag, group or "", channel, message, the newest purge that is known. Marks, and deletes the first part.
# Returns how many records there were, whether some are left, and the purges that the process did not know.
PURGE: Final = (
    _FREE
    + f"""
local tag, group = ARGV[2], ARGV[3]
local number = math.max(now_us, newest_purge() + 1)
add('purges', number, group == '' and tag or tag .. ' ' .. group, {_TOMBSTONE_DAYS} * 86400000)
redis.call('ZREMRANGEBYSCORE', P .. 'purges', '-inf', now_us - {_TOMBSTONE_DAYS} * 86400000000)
"""
    + """
local sets, gone = {}, 0
local is_beside = {lease = true, fence = true, counter = true, places = true}
if group == '' then
  local kinds = redis.pcall('ZRANGE', P .. 'kinds:' .. tag, 0, -1)
  for at, kind in ipairs(is_refused(kinds) and {} or kinds) do sets[at] = 'index:' .. tag .. ':' .. kind end
  redis.call('UNLINK', P .. 'kinds:' .. tag)
  redis.pcall('ZREM', P .. 'tags', tag)
else
  sets[1] = 'group:' .. tag .. ':' .. group
end
for _, set in ipairs(sets) do
  redis.pcall('ZREMRANGEBYSCORE', P .. set, '-inf', now)
  local size = redis.pcall('ZCARD', P .. set)
  if is_refused(size) or size > 0 then
    local kind = string.match(set, '^index:[^:]+:(.*)$')
    if not is_refused(size) and not is_beside[kind] then
      gone = gone + size
    end
    local item = show(number) .. ':' .. set
    redis.call('RENAME', P .. set, P .. 'doomed:' .. item)
    redis.call('PERSIST', P .. 'doomed:' .. item)
    redis.call('ZADD', P .. 'doomed', number, item)
  end
end
local more = sweep(500)
redis.call('PUBLISH', ARGV[4], ARGV[5])
return {gone, more, list_purges(tonumber(ARGV[6]))}
"""
)

# ARGV: how many. Goes on with what was purged. Returns whether some are left.
SWEEP: Final = _FREE + "return sweep(tonumber(ARGV[2]))"

# ARGV: an epoch, if there is none yet; the newest purge that is known, or how many µs the process has run.
# Returns the epoch, the newest number that is known from now on, and the purges that were not.
CHECK: Final = (
    _FREE
    + """
local epoch = read('epoch')
if not epoch then
  epoch = ARGV[2]
  redis.call('SET', P .. 'epoch', epoch)
end
local known = tonumber(ARGV[3])
if known < 1e14 then known = now_us - known end
sweep(100)
return {epoch, show(known), list_purges(known)}
"""
)
