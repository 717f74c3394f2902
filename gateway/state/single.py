"""One piece of work at a time, over all processes that share the store.

The process that does it holds a lease and renews it. The others wait until it is released, and use what was
made. If the holder dies, its lease runs out and one of them takes over. While the store is away, every
process is alone. Does not know what the work is.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from gateway.state.kinds import FailedCompaction
from gateway.state.records import Records
from gateway.store.interface import HeldLease, Lease, Store, StoreError
from gateway.store.keys import make_tag

T = TypeVar("T")
# Of what is stored.
P = TypeVar("P")

# So often a process gets the lease for one piece of work. It may lose it in pauses.
_MOST_CLAIMS: Final = 3


@dataclass(frozen=True, kw_only=True)
class LeaseTimes:
    """keep_seconds: so long after a holder's death another one takes over. renew_seconds: while it works."""

    keep_seconds: float = 6.0
    renew_seconds: float = 2.0


class WorkFailed(Exception):
    """The holder has noted why it came to nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LeaseLost(Exception):
    """The lease was lost, and another process has made what was wanted, or is at it."""


class Work:
    """Work under a lease, which is renewed meanwhile. lease: the newest one of it."""

    def __init__(self, single: "Single", owner: str, lease: Lease, find_newer: "Find[object] | None") -> None:
        self.lease = lease
        self._single = single
        self._owner = owner
        self._find_newer = find_newer

    async def store(self, put: Callable[[Lease], Awaitable[P | None]]) -> P:
        """What `put` stores under the lease, which returns None if the lease was lost. Then it is claimed
        again, and used unless somebody else has made something newer by then.

        Raises LeaseLost, and what `put` raises.
        """
        for _ in range(_MOST_CLAIMS):
            stored = await put(self.lease)
            if stored is not None:
                return stored
            claimed = await self._single.claim(self._owner, self.lease.name)
            if isinstance(claimed, HeldLease):
                raise LeaseLost
            self.lease = claimed
            if self._find_newer is not None and await self._find_newer() is not None:
                raise LeaseLost
        raise LeaseLost

    async def note_failure(self, reason: str) -> None:
        """Those who wait for this process need not try the same."""
        await self._single.note_failure(self._owner, self.lease, reason)


Find = Callable[[], Awaitable[T | None]]
Make = Callable[[Work], Awaitable[T]]


class _Done(NamedTuple, Generic[T]):
    result: T


class Single:
    def __init__(self, store: Store, failures: Records[FailedCompaction], times: LeaseTimes) -> None:
        self._store = store
        self._failures = failures
        self._times = times

    async def run(
        self,
        owner: str,
        name: str,
        make: Make[T],
        *,
        also: Find[T] | None,
        waits: Callable[[], bool],
        inside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> T | None:
        """What `make` returns, or what another process has made; None if one is at it, and nobody waits.

        also: finds what would do as well, and is asked before each try; None if nothing else will do, and no
        failure of others counts. waits: whether somebody waits for it. inside: is entered for each try, and
        left while another process is waited for. Raises WorkFailed if the other process came to nothing,
        LeaseLost after too many tries, and what `make` raises but LeaseLost.
        """
        lost = 0
        while lost < _MOST_CLAIMS:
            async with inside():
                tried = await self._try(owner, name, make, also)
            if tried is None:
                lost += 1
                continue
            if not isinstance(tried, HeldLease):
                return tried.result
            if not waits():
                return None
            await self._store.until_free(tried)
            if (newer := await self._learn_outcome(owner, tried, also)) is not None:
                return newer
        raise LeaseLost

    async def _try(
        self, owner: str, name: str, make: Make[T], also: Find[T] | None
    ) -> _Done[T] | HeldLease | None:
        """None if the lease was lost."""
        claimed = await self.claim(owner, name)
        if isinstance(claimed, HeldLease):
            return claimed
        with suppress(LeaseLost):
            return _Done(await self._work(owner, claimed, make, also))
        return None

    async def _learn_outcome(self, owner: str, held: HeldLease, also: Find[T] | None) -> T | None:
        """What came of the work of another process; None if it has to be done. Raises WorkFailed."""
        newer = await also() if also is not None else None
        reason = await self.find_failure(owner, held) if also is not None and newer is None else None
        if reason is not None:
            raise WorkFailed(reason)
        return newer

    async def _work(self, owner: str, lease: Lease, make: Make[T], also: Find[T] | None) -> T:
        work = Work(self, owner, lease, also)
        # A lease that is lost meanwhile is claimed again when the outcome is stored.
        async with self._keeping(lambda: work.lease):
            newer = await also() if also is not None else None
            return newer if newer is not None else await make(work)

    async def claim(self, owner: str, name: str) -> Lease | HeldLease:
        return await self._store.claim(make_tag(owner), name, ttl=self._times.keep_seconds)

    @asynccontextmanager
    async def hold(self, owner: str, name: str, most_seconds: float) -> AsyncIterator[Lease]:
        """The lease of a piece of work, which nobody else does meanwhile. What is done inside is done even if
        it is lost. Raises LeaseLost if another one holds it for so long, StoreError.
        """
        try:
            async with asyncio.timeout(most_seconds):
                while isinstance(lease := await self.claim(owner, name), HeldLease):
                    await self._store.until_free(lease)
        except TimeoutError:
            raise LeaseLost from None
        async with self._keeping(lambda: lease):
            yield lease

    async def note_failure(self, owner: str, lease: Lease, reason: str) -> None:
        record = FailedCompaction(fence=lease.fence, reason=reason)
        with suppress(StoreError):
            await self._failures.put_durable(owner, lease.name, record, lease=lease)

    async def find_failure(self, owner: str, held: HeldLease) -> str | None:
        """Why the holder came to nothing; None if it says nothing, because it has stopped or still works."""
        with suppress(StoreError):
            found = await self._failures.get(owner, held.name)
            if found is not None and found.fence == held.fence:
                return found.reason
        return None

    @asynccontextmanager
    async def _keeping(self, find_lease: Callable[[], Lease]) -> AsyncIterator[None]:
        async def keep() -> None:
            while True:
                await asyncio.sleep(self._times.renew_seconds)
                await self._store.renew(find_lease(), ttl=self._times.keep_seconds)

        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()
            # Also if this process ends: the others take over at once.
            self._store.release(find_lease())
