"""Lets a tenant's request in, or refuses it with 429: so many in a minute, and so many at the same time.

Does not know what requests are about.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

from gateway.core.errors import RequestRefused
from gateway.settings import Quota
from gateway.store.interface import HeldPlace
from gateway.store.keys import make_tag
from gateway.tenants.ledger import Ledger, Rate
from gateway.tenants.tenants import Tenant

_MINUTE: Final = 60.0
# Of how long requests take: so much of the newest one counts.
_NEWEST_SHARE: Final = 0.2
# Before any request of a tenant has ended. A reply of a model takes some seconds.
_USUAL_SECONDS: Final = 5.0
# Clients wait for longer by themselves, and the official SDKs ignore a longer time.
_LONGEST_WAIT_SECONDS: Final = 60.0

_NO_LIMIT: Final = nullcontext()

# Hears of each refusal: the tenant's name as operators see it, and the limit.
NoteRefusal = Callable[[str, str], None]


class QuotaGate:
    """clock: seconds that never go back."""

    def __init__(
        self, ledger: Ledger, note_refusal: NoteRefusal, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._note_refusal = note_refusal
        self._clock = clock
        # How long a request of each tenant takes. Tenants are those of the settings.
        self._usual_seconds: dict[str, float] = {}

    def admit(self, tenant: Tenant) -> AbstractAsyncContextManager[None]:
        """Around a request, until its response has ended. Raises RequestRefused (429)."""
        quota = tenant.quota
        return _NO_LIMIT if quota is None or not quota.limits_requests else self._admit(tenant, quota)

    @asynccontextmanager
    async def _admit(self, tenant: Tenant, quota: Quota) -> AsyncIterator[None]:
        rate = _make_rate(tenant, quota.requests_per_minute)
        # The minute comes first: no place goes to a request that it refuses, not even for a moment.
        if rate is not None:
            await self._check_rate(tenant, rate)
        place = self._ledger.make_place(make_tag(tenant.id), "places")
        try:
            if quota.concurrent_requests is not None:
                await self._take(tenant, quota.concurrent_requests, place, rate)
            begun_seconds = self._clock()
            yield
            self._note_length(tenant, self._clock() - begun_seconds)
        finally:
            if quota.concurrent_requests is not None:
                self._ledger.let_go(place)

    async def _check_rate(self, tenant: Tenant, rate: Rate) -> None:
        """Raises RequestRefused. What is refused counts for nothing."""
        wait_seconds = await self._ledger.count(rate)
        if wait_seconds:
            self._note_refusal(tenant.display_name, "requests_per_minute")
            raise _make_refusal(f"{rate.most:.0f} requests a minute", wait_seconds)

    async def _take(self, tenant: Tenant, most: int, place: HeldPlace, rate: Rate | None) -> None:
        """Raises RequestRefused. rate: where the request was counted, which what is refused is not."""
        try:
            is_taken = await self._ledger.take(place, most)
        except asyncio.CancelledError:
            if rate is not None:
                self._ledger.correct_later(rate, -1)
            raise
        if is_taken:
            return
        if rate is not None:
            # Before the client hears of it, which may ask again at once.
            await self._ledger.count(rate, -1)
        self._note_refusal(tenant.display_name, "concurrent_requests")
        raise _make_refusal(f"{most} requests at the same time", self._guess_wait(tenant, most))

    def _guess_wait(self, tenant: Tenant, most: int) -> float:
        """Until one of the running requests ends, by how long those before them took."""
        usual = self._usual_seconds.get(tenant.id, _USUAL_SECONDS)
        return min(usual / most, _LONGEST_WAIT_SECONDS - 1)

    def _note_length(self, tenant: Tenant, seconds: float) -> None:
        before = self._usual_seconds.get(tenant.id, seconds)
        self._usual_seconds[tenant.id] = before + _NEWEST_SHARE * (seconds - before)


def _make_rate(tenant: Tenant, most: int | None) -> Rate | None:
    return None if most is None else Rate(make_tag(tenant.id), "requests", most, _MINUTE)


def _make_refusal(limit: str, wait_seconds: float) -> RequestRefused:
    """In whole seconds, after which there is room."""
    retry_after = math.floor(wait_seconds) + 1
    return RequestRefused(
        429,
        f"Rate limit of the gateway reached: this tenant may send {limit}. Try again in {retry_after} s.",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after_seconds=retry_after,
    )
