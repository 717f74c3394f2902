"""What runs on the server: constants, with all values in KEYS and ARGV. The keys of one call lie in one slot.

`pcall` keeps a key of the wrong type, which something else has written, from failing the whole call.
"""

import hashlib
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Script:
    text: str
    digest: str


def make_script(text: str) -> Script:
    # The server names scripts by their SHA-1.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


# The first key that has a value: its position, the value, and whether a key of another type was passed over.
# Only this value travels.
READ_FIRST: Final = make_script("""
local wrong = 0
for position, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if type(value) == 'string' then return {position, value, wrong} end
  if type(value) == 'table' then wrong = 1 end
end
return {0, '', wrong}
""")

# KEYS: list. ARGV: member, milliseconds until it expires. The list lives as long as its longest member.
ADD_TO_LIST: Final = make_script("""
local kept = redis.call('TYPE', KEYS[1]).ok
if kept ~= 'zset' and kept ~= 'none' then redis.call('UNLINK', KEYS[1]) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
""")

# KEYS: fence, lease, rivals. ARGV: process, milliseconds. A fence is the time in microseconds, or one more
# than the fence before: it grows even if the server has lost everything. A value that is no lease of ours,
# or never ends, holds nothing.
CLAIM: Final = make_script("""
local holders = redis.call('MGET', unpack(KEYS, 2))
for place = 1, #KEYS - 1 do
  local holder = holders[place]
  if holder and string.match(holder, '^%d+:%x+$') then
    local left = redis.call('PTTL', KEYS[place + 1])
    if left > 0 then return {0, place, holder, left} end
  end
end
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
local before = redis.pcall('GET', KEYS[1])
before = type(before) == 'string' and tonumber(before) or 0
if before >= fence then fence = before + 1 end
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[1], text, 'PX', 86400000)
redis.call('SET', KEYS[2], text .. ':' .. ARGV[1], 'PX', ARGV[2])
return {1, text}
""")

# An expired lease is still good as long as no other lease of the tag was granted since: the server has been
# away, or has lost everything, and no other process is at work.
_HOLDS: Final = """
local function holds(lease, fence_key, holder, fence)
  local now = redis.pcall('GET', lease)
  if type(now) == 'string' then return now == holder end
  local newest = redis.pcall('GET', fence_key)
  newest = type(newest) == 'string' and tonumber(newest) or 0
  return newest <= tonumber(fence)
end
"""

# KEYS: lease, fence. ARGV: holder, fence, milliseconds. The counter may be further already, and never goes
# back.
RENEW: Final = make_script(
    _HOLDS
    + """
if not holds(KEYS[1], KEYS[2], ARGV[1], ARGV[2]) then return 0 end
local newest = redis.pcall('GET', KEYS[2])
newest = type(newest) == 'string' and tonumber(newest) or 0
if newest < tonumber(ARGV[2]) then redis.call('SET', KEYS[2], ARGV[2]) end
redis.call('PEXPIRE', KEYS[2], 86400000)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1
"""
)

# KEYS: lease, fence, record. ARGV: holder, fence, milliseconds, value.
WRITE_FENCED: Final = make_script(
    _HOLDS
    + """
if not holds(KEYS[1], KEYS[2], ARGV[1], ARGV[2]) then return 0 end
redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[3])
return 1
"""
)

# KEYS: lease. ARGV: holder, channel, message. Wakes those who wait, if the lease was still held.
RELEASE: Final = make_script("""
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('UNLINK', KEYS[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
""")

_HEAL_INDEX: Final = """
for position, wanted in ipairs({'zset', 'hash', 'string'}) do
  local kept = redis.call('TYPE', KEYS[position]).ok
  if kept ~= wanted and kept ~= 'none' then redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3]) end
end
"""

# KEYS: times, sizes, total. ARGV: member, bytes, time. Returns the bytes of all members.
ADD_TO_INDEX: Final = make_script(
    _HEAL_INDEX
    + """
local before = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
return redis.call('INCRBY', KEYS[3], ARGV[2] - before)
"""
)

# KEYS: times, sizes, total. ARGV: members that are gone. Returns the bytes of all others.
DROP_FROM_INDEX: Final = make_script(
    _HEAL_INDEX
    + """
local freed = 0
for _, member in ipairs(ARGV) do
  freed = freed + tonumber(redis.call('HGET', KEYS[2], member) or 0)
  redis.call('HDEL', KEYS[2], member)
  redis.call('ZREM', KEYS[1], member)
end
return redis.call('DECRBY', KEYS[3], freed)
"""
)

# KEYS: times, sizes, total. ARGV: bytes that may stay, number of members. The oldest that must go.
CHOOSE_OLDEST: Final = make_script(
    _HEAL_INDEX
    + """
local excess = tonumber(redis.call('GET', KEYS[3]) or 0) - ARGV[1]
local members = {}
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1)) do
  if excess <= 0 then break end
  excess = excess - tonumber(redis.call('HGET', KEYS[2], member) or 0)
  members[#members + 1] = member
end
return members
"""
)
