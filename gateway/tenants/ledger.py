"""What tenants use, counted in the store for all processes, and by each alone while the store is away.

Does not know what the limits are for.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from gateway.bounds.background import BackgroundTasks
from gateway.store.interface import HeldPlace, SlidingWindow, StoreError

log = logging.getLogger("gateway.quotas")

_ID_BYTES: Final = 8
# A place that is not renewed is free after this time, and each is renewed three times within it. So the death
# of a process frees its places.
KEEP_SECONDS: Final = 15.0
_RENEW_SECONDS: Final = 5.0
# A place that was lost while its request runs is held again, whether there is room or not.
_NO_LIMIT: Final = 1 << 31


class Counters(Protocol):
    """The part of a store that counts: see `Store`."""

    async def count(self, tag: str, name: str, cost: float, most: float, window: float) -> float: ...

    async def hold(self, tag: str, name: str, member: str, most: int, ttl: float) -> bool: ...

    def let_go(self, tag: str, name: str, member: str) -> None: ...


class Rate(NamedTuple):
    """At most so many within the last so many seconds. tag: of the tenant."""

    tag: str
    name: str
    most: float
    seconds: float


class Ledger:
    """clock: seconds, for what is counted here alone. renew_seconds: how often places are renewed."""

    def __init__(
        self,
        store: Counters,
        clock: Callable[[], float] = time.time,
        renew_seconds: float = _RENEW_SECONDS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._renew_seconds = renew_seconds
        # Tenants with limits are those of the settings, so both are small.
        self._windows: dict[tuple[str, str], SlidingWindow] = {}
        self._held: set[HeldPlace] = set()
        self._is_away = False
        self._process = secrets.token_hex(_ID_BYTES)
        self._made = 0
        self._counting = BackgroundTasks("count of a tenant")
        self._renewing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._renewing = asyncio.get_running_loop().create_task(self._renew_places())

    async def close(self) -> None:
        """Counts what is to be counted, and gives back what this process still holds."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait((self._renewing,))
        await self.finish()
        for place in list(self._held):
            self.let_go(place)

    async def count(self, rate: Rate, cost: float = 1) -> float:
        """0 if it was counted, else the seconds until there is room. A cost below 0 is always counted."""
        tag, name, most, seconds = rate
        try:
            wait_seconds = await self._store.count(tag, name, cost, most, seconds)
        except StoreError:
            self._note_away(is_away=True)
            return self._count_here(rate, cost)
        self._note_away(is_away=False)
        return wait_seconds

    def correct_later(self, rate: Rate, change: float) -> None:
        """Counts more or less, without a limit, and without waiting for it."""
        self._counting.spawn(self.count(rate._replace(most=float("inf")), change))

    async def finish(self) -> None:
        """Returns when everything is counted that was to be counted later."""
        await self._counting.finish()

    def make_place(self, tag: str, name: str) -> HeldPlace:
        """One that is not taken yet."""
        self._made += 1
        return HeldPlace(tag, name, f"{self._process}-{self._made}")

    async def take(self, place: HeldPlace, most: int) -> bool:
        """False if `most` are held already. It has to be given back in any case, even after a cancel."""
        self._held.add(place)
        try:
            is_taken = await self._store.hold(*place, most, KEEP_SECONDS)
        except StoreError:
            self._note_away(is_away=True)
            is_taken = sum(each[:2] == place[:2] for each in self._held) <= most
        else:
            self._note_away(is_away=False)
        if not is_taken:
            self._held.discard(place)
        return is_taken

    def let_go(self, place: HeldPlace) -> None:
        """Whether it was taken or not. Never waits, and is not lost while the store is away."""
        self._held.discard(place)
        self._store.let_go(*place)

    def _count_here(self, rate: Rate, cost: float) -> float:
        now = self._clock()
        slot = int(now // rate.seconds)
        window = self._windows.get((rate.tag, rate.name), SlidingWindow(slot, 0.0, 0.0))
        if window.slot != slot:
            window = SlidingWindow(slot, 0.0, window.used if window.slot == slot - 1 else 0.0)
        wait_seconds = window.find_wait(cost, rate.most, rate.seconds, now)
        if not wait_seconds:
            window = window._replace(used=max(0.0, window.used + cost))
        self._windows[rate.tag, rate.name] = window
        return wait_seconds

    def _note_away(self, *, is_away: bool) -> None:
        """The store itself warns that it is away; this is what follows for the limits."""
        if is_away and not self._is_away:
            log.info("limits of tenants hold in each process alone: the store cannot be reached")
        elif self._is_away and not is_away:
            log.info("limits of tenants hold over all processes again")
        self._is_away = is_away

    async def _renew_places(self) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            try:
                for place in list(self._held):
                    await self._renew(place)
            except StoreError:
                # It is asked again the next time.
                continue

    async def _renew(self, place: HeldPlace) -> None:
        if place in self._held:
            await self._store.hold(*place, _NO_LIMIT, KEEP_SECONDS)
            if place not in self._held:
                # Given back meanwhile, and possibly before it was held again.
                self._store.let_go(*place)
