"""What tenants use, counted in Redis for all processes that share it.

The counting is the `limits` library's: its strategy, and its own scripts on the server. They travel as all
commands of the store do, in one round trip with the others of the moment and behind its breaker. A client of
the library's own would be a second connection, which fails in its own way and at its own time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from limits.aio.storage.redis.bridge import RedisBridge

from gateway.quotas.ledger import Backend
from gateway.quotas.meter import RateMeter
from gateway.quotas.places import KEEP_SECONDS
from gateway.quotas.window_storage import WindowStorage
from gateway.store import StoreError
from gateway.store.redis.scripts import Script, make_script

_KEEP_MILLISECONDS: Final = int(KEEP_SECONDS * 1000)


@runtime_checkable
class ScriptRunner(Protocol):
    """A store that runs scripts on its server."""

    async def run_script(
        self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]
    ) -> object:
        """The server's reply. Raises StoreError if it is away, or refuses the script."""


def make_redis_backend(runner: ScriptRunner) -> Backend:
    return Backend(RateMeter(RedisWindows(runner)), RedisPlaces(runner))


# What something else has written under these keys is no count.
_HEAL_WINDOWS: Final = """
for position = 1, 2 do
  local kept = redis.call('TYPE', KEYS[position]).ok
  local is_count = kept == 'string' and tonumber(redis.call('GET', KEYS[position]))
  if kept ~= 'none' and not is_count then redis.call('UNLINK', KEYS[position]) end
end
"""
# KEYS: counter of the window before, counter of this window. ARGV: limit, seconds, cost.
_COUNT: Final = make_script(_HEAL_WINDOWS + RedisBridge.SCRIPT_ACQUIRE_SLIDING_WINDOW.decode())
# KEYS: the same. ARGV: seconds.
_READ: Final = make_script(_HEAL_WINDOWS + RedisBridge.SCRIPT_SLIDING_WINDOW.decode())


class RedisWindows(WindowStorage):
    """The library's sliding window, under keys whose hash tag is the tenant's."""

    def __init__(self, runner: ScriptRunner) -> None:
        super().__init__()
        self._runner = runner

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return bool(await self._runner.run_script(_COUNT, _name_windows(key), (limit, expiry, amount)))

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        reply = await self._runner.run_script(_READ, _name_windows(key), (expiry,))
        previous, previous_milliseconds, current, current_milliseconds = _read_numbers(reply)
        # A counter that does not exist lives for less than nothing.
        return (
            previous,
            max(0, previous_milliseconds) / 1000,
            current,
            max(0, current_milliseconds) / 1000,
        )


def _read_numbers(reply: object) -> tuple[int, int, int, int]:
    """Raises StoreError for anything but four of them. A missing one is 0."""
    match reply:
        case [first, second, third, fourth]:
            return _read_number(first), _read_number(second), _read_number(third), _read_number(fourth)
        case _:
            raise StoreError("the server's reply is no list of counts")


def _read_number(value: object) -> int:
    if isinstance(value, bytes) and value.lstrip(b"-").isdigit():
        return int(value)
    if isinstance(value, int):
        return value
    if value is None:
        return 0
    raise StoreError("the server's reply is no count")


def _name_windows(key: str) -> tuple[str, str]:
    return f"{key}/-1", key


_HEAL_PLACES: Final = """
local kept = redis.call('TYPE', KEYS[1]).ok
if kept ~= 'zset' and kept ~= 'none' then redis.call('UNLINK', KEYS[1]) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# Members by the time at which their place is free, by the server's clock.
# KEYS: places. ARGV: milliseconds, most, member.
_TAKE: Final = make_script(
    _HEAL_PLACES
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
)

# KEYS: places. ARGV: milliseconds, members.
_RENEW: Final = make_script(
    _HEAL_PLACES
    + """
for position = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[position]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
)

# KEYS: places. ARGV: members.
_GIVE_BACK: Final = make_script(
    _HEAL_PLACES
    + """
for position = 1, #ARGV do redis.call('ZREM', KEYS[1], ARGV[position]) end
return 1
"""
)


class RedisPlaces:
    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    async def take(self, key: str, member: str, most: int) -> bool:
        return bool(await self._runner.run_script(_TAKE, (key,), (_KEEP_MILLISECONDS, most, member)))

    async def renew(self, members: Mapping[str, Sequence[str]]) -> None:
        calls = [
            self._runner.run_script(_RENEW, (key,), (_KEEP_MILLISECONDS, *found))
            for key, found in members.items()
        ]
        await asyncio.gather(*calls)

    async def give_back(self, members: Mapping[str, Sequence[str]]) -> None:
        calls = [self._runner.run_script(_GIVE_BACK, (key,), tuple(found)) for key, found in members.items()]
        await asyncio.gather(*calls)
