"""What tenants use, counted over all processes: in the shared store, or in this process alone where there is
none, and while it cannot be reached.

Does not know what the limits are for.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from limits.aio.storage import MemoryStorage

from gateway.quotas.meter import Rate, RateMeter
from gateway.quotas.places import RENEW_SECONDS, LocalPlaces, QuotaPlaces
from gateway.store import StoreError

log = logging.getLogger("gateway.quotas")

T = TypeVar("T")

_ID_BYTES: Final = 8


class Backend(NamedTuple):
    """Where it is counted. What `meter` and `places` do raises StoreError if they cannot be reached."""

    meter: RateMeter
    places: QuotaPlaces


class QuotaPlace(NamedTuple):
    """One of those that a running request holds."""

    key: str
    member: str


class Ledger:
    """shared: None if this process is the only one.

    renew_seconds: how often the places of running requests are renewed there.
    """

    def __init__(self, shared: Backend | None = None, renew_seconds: float = RENEW_SECONDS) -> None:
        # The places of this process are held here in any case: what is renewed in the shared store, and what
        # counts while that is away.
        self._own_places = LocalPlaces()
        self._own = Backend(RateMeter(MemoryStorage()), self._own_places)
        self._shared = shared
        self._renew_seconds = renew_seconds
        self._is_away = False
        self._process = secrets.token_hex(_ID_BYTES)
        self._made = 0
        self._given_back: list[QuotaPlace] = []
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._counting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        if self._shared is not None:
            self._spawn(self._keep_places(self._shared))

    async def close(self) -> None:
        """Counts what is to be counted, and gives back what this process still holds."""
        await self.finish()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._shared is not None:
            held = [
                QuotaPlace(key, each) for key, found in self._own_places.members.items() for each in found
            ]
            with contextlib.suppress(StoreError):
                await self._shared.places.give_back(_group([*self._given_back, *held]))

    async def count(self, rate: Rate, cost: int = 1) -> float:
        """0 if it was counted, else the seconds until there is room for it."""
        return await self._ask(lambda backend: backend.meter.count(rate, cost))

    async def correct(self, rate: Rate, change: int) -> None:
        """Counts more or less, without a limit."""
        await self._ask(lambda backend: backend.meter.correct(rate, change))

    def correct_later(self, rate: Rate, change: int) -> None:
        """The same without waiting for it."""
        task = self._spawn(self.correct(rate, change))
        self._counting.add(task)
        task.add_done_callback(self._counting.discard)

    async def finish(self) -> None:
        """Returns when everything is counted that was to be counted later."""
        await asyncio.gather(*self._counting)

    def make_place(self, key: str) -> QuotaPlace:
        """One that is not taken yet."""
        self._made += 1
        return QuotaPlace(key, f"{self._process}-{self._made}")

    async def take(self, place: QuotaPlace, most: int) -> bool:
        """False if `most` of its key are held already. It has to be given back, even if this is cancelled."""
        key, member = place
        if self._shared is None:
            return await self._own_places.take(key, member, most)
        taking = self._spawn(self._ask(lambda backend: backend.places.take(key, member, most)))
        try:
            is_taken = await asyncio.shield(taking)
        except asyncio.CancelledError:
            # It may be taken after it was given back.
            taking.add_done_callback(lambda _: self.give_back(place))
            raise
        if is_taken:
            self._own_places.hold(key, member)
        return is_taken

    def give_back(self, place: QuotaPlace) -> None:
        """Whether it was taken or not. Never waits: the shared store hears of it in the background."""
        self._own_places.drop(*place)
        if self._shared is not None:
            self._given_back.append(place)
            self._wake.set()

    async def _ask(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        if self._shared is not None:
            try:
                found = await work(self._shared)
            except StoreError:
                self._note_away(is_away=True)
            else:
                self._note_away(is_away=False)
                return found
        return await work(self._own)

    def _note_away(self, *, is_away: bool) -> None:
        """The store itself warns that it is away; this is what follows for the limits."""
        if is_away and not self._is_away:
            log.info("limits of tenants hold in each process alone: the store cannot be reached")
        elif self._is_away and not is_away:
            log.info("limits of tenants hold over all processes again")
        self._is_away = is_away

    async def _keep_places(self, shared: Backend) -> None:
        """Gives back and renews places, one after the other: what was given back is never renewed later."""
        loop = asyncio.get_running_loop()
        renew_at = loop.time() + self._renew_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(renew_at):
                    await self._wake.wait()
            self._wake.clear()
            with contextlib.suppress(StoreError):
                if self._given_back:
                    ended, self._given_back = self._given_back, []
                    await shared.places.give_back(_group(ended))
                if loop.time() >= renew_at:
                    renew_at = loop.time() + self._renew_seconds
                    await shared.places.renew(self._own_places.members)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _group(places: list[QuotaPlace]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for place in places:
        grouped.setdefault(place.key, []).append(place.member)
    return grouped
