"""The leases of all workers, in the memory of the process that serves their store."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from gateway.store.leases import Held, Lease

# Leases that ended without a release leave when there are more than this.
_SWEEP_ABOVE: Final = 1_000


@dataclass(eq=False, slots=True)
class _Holding:
    holder: object
    fence: int
    ends: float
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)


class LeaseTable:
    """holder: its leases are released with `drop`; the connection of a worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holdings: dict[str, _Holding] = {}
        # Larger than those of an earlier process.
        self._fences = itertools.count(time.time_ns() // 1_000)

    @property
    def count(self) -> int:
        """How many leases are known, those that have ended and were not looked at since among them."""
        return len(self._holdings)

    def claim(self, holder: object, key: str, rivals: Sequence[str], keep_seconds: float) -> Lease | Held:
        now = self._clock()
        for name in (key, *rivals):
            held = self._find(name, now)
            if held is not None:
                return Held(name, held.fence, held.ends - now)
        if len(self._holdings) > _SWEEP_ABOVE:
            self._sweep(now)
        fence = next(self._fences)
        self._holdings[key] = _Holding(holder, fence, now + keep_seconds)
        return Lease(key, fence)

    def renew(self, lease: Lease, keep_seconds: float) -> bool:
        """False if it was lost."""
        now = self._clock()
        held = self._find(lease.key, now)
        if held is None or held.fence != lease.fence:
            return False
        held.ends = now + keep_seconds
        return True

    def is_held(self, lease: Lease) -> bool:
        held = self._find(lease.key, self._clock())
        return held is not None and held.fence == lease.fence

    def release(self, lease: Lease) -> None:
        """Wakes those who wait for it. Does nothing if it was lost."""
        held = self._holdings.get(lease.key)
        if held is not None and held.fence == lease.fence:
            self._end(lease.key)

    def drop(self, holder: object) -> None:
        """Releases everything that it holds."""
        for key in [key for key, held in self._holdings.items() if held.holder is holder]:
            self._end(key)

    async def wait(self, lease: Lease) -> None:
        """Returns when it is not held any more. A renewal prolongs the wait."""
        while True:
            now = self._clock()
            held = self._find(lease.key, now)
            if held is None or held.fence != lease.fence:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(held.ends - now):
                    await held.has_ended.wait()

    def _find(self, key: str, now: float) -> _Holding | None:
        held = self._holdings.get(key)
        if held is None or held.ends > now:
            return held
        self._end(key)
        return None

    def _end(self, key: str) -> None:
        self._holdings.pop(key).has_ended.set()

    def _sweep(self, now: float) -> None:
        for key in [key for key, held in self._holdings.items() if held.ends <= now]:
            self._end(key)
