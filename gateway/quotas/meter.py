"""How often something may happen within a window of time. The `limits` library counts.

Its sliding window is two counters, whatever the limit: the one of the window before counts by the part of it
that is still within the last minute, or hour. Does not know what is counted.
"""

import math
from typing import Final, NamedTuple

from limits import RateLimitItemPerSecond
from limits.aio.storage import SlidingWindowCounterSupport, Storage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

# Nothing reaches it.
_NO_LIMIT: Final = 1 << 53
# A refused attempt has to wait, even if there is room again by the time the counters are read.
_LEAST_WAIT_SECONDS: Final = 0.001


class Rate(NamedTuple):
    """At most so many within the last so many seconds. key: of the store."""

    key: str
    most: int
    seconds: int


class WindowCounts(NamedTuple):
    """What the two counters of a sliding window hold, and for how long each of them lives.

    The current one lives for two windows from its beginning: for one as the current, for one as the previous.
    """

    previous: int
    previous_seconds: float
    current: int
    current_seconds: float


class _KeyedLimit(RateLimitItemPerSecond):
    """A limit whose counters are named by the key alone: they go on when a reload changes the limit."""

    def key_for(self, *identifiers: bytes | str | int | float) -> str:
        return "".join(map(str, identifiers))


class RateMeter:
    def __init__(self, storage: Storage) -> None:
        assert isinstance(storage, SlidingWindowCounterSupport)
        self._windows: SlidingWindowCounterSupport = storage
        self._limiter = SlidingWindowCounterRateLimiter(storage)

    async def count(self, rate: Rate, cost: int = 1) -> float:
        """0 if it was counted, else the seconds until there is room for it."""
        if await self._limiter.hit(_KeyedLimit(rate.most, rate.seconds), rate.key, cost=cost):
            return 0.0
        counts = WindowCounts(*await self._windows.get_sliding_window(rate.key, rate.seconds))
        return max(_LEAST_WAIT_SECONDS, find_wait(counts, rate, cost))

    async def correct(self, rate: Rate, change: int) -> None:
        """Counts more or, with a negative change, less. Never refused."""
        await self._limiter.hit(_KeyedLimit(_NO_LIMIT, rate.seconds), rate.key, cost=change)


def find_wait(counts: WindowCounts, rate: Rate, cost: int) -> float:
    """The seconds until `cost` fits, if nothing else is counted meanwhile: 0 if it fits now.

    What never fits waits for a whole window, after which the limit may be another one.
    """
    if cost > rate.most:
        return float(rate.seconds)
    if counts.current + cost <= rate.most:
        return _find_decay(counts.previous, counts.previous_seconds, rate.most - cost - counts.current, rate)
    # It has to become the previous one first.
    shift_seconds = max(0.0, counts.current_seconds - rate.seconds)
    return shift_seconds + _find_decay(counts.current, rate.seconds, rate.most - cost, rate)


def _find_decay(count: int, lives_seconds: float, room: int, rate: Rate) -> float:
    """The seconds until no more than `room` of a previous counter's count is left, rounded down as the
    library does it.
    """
    if math.floor(count * lives_seconds / rate.seconds) <= room:
        return 0.0
    # It has to be less than room + 1, not only equal.
    return lives_seconds - (room + 1) * rate.seconds / count + _LEAST_WAIT_SECONDS
