"""The store of a worker: a client of the process that serves one store to all workers of a gateway."""

import asyncio
import logging
from collections.abc import Sequence
from math import inf
from typing import Final

from gateway.store.errors import StoreError, Unusable
from gateway.store.leases import Held, Lease, Leases
from gateway.store.news import Listener, News
from gateway.store.record import check_key
from gateway.store.served.calls import (
    AnnounceCall,
    BarrierCall,
    ClaimCall,
    DeleteCall,
    DurableCall,
    HeldReply,
    LeasedCall,
    NumberReply,
    PurgeCall,
    ReadCall,
    RecordsReply,
    ReleaseCall,
    RenewCall,
    ScanCall,
    ServiceCall,
    StoreAnswer,
    StoreName,
    TakeCall,
    ValueReply,
    WaitCall,
    WriteCall,
)
from gateway.store.served.connection import StoreConnection

_log = logging.getLogger(__name__)

# A disk that is busy with other things answers in less. A client waits for it.
_READ_SECONDS: Final = 5.0
# As long as a write waits for the lock of a database, and some more.
_WRITE_SECONDS: Final = 20.0
_SERVICE_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 2.0


class ServedStore:
    """place: which of the served stores it is."""

    is_shared = True

    def __init__(self, connection: StoreConnection, place: StoreName = "main") -> None:
        self._connection = connection
        self._place = place
        self._is_open = False
        self.leases: Leases = ServedLeases(connection)
        self.news: News = ServedNews(connection)

    @property
    def waiting_bytes(self) -> int:
        """What the serving process has not taken yet. One store shows it for all on the connection."""
        return self._connection.waiting_bytes if self._place == "main" else 0

    async def open(self) -> None:
        await self._connection.open()
        self._is_open = True

    async def close(self) -> None:
        """Returns when the serving process has everything. The connection stays for others."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            await self._connection.ask(BarrierCall, _CLOSE_SECONDS)
        except StoreError as error:
            # Logged by one store for all that share the connection.
            if self._place == "main":
                _log.warning("store: what was written last may be lost: %s", error)

    async def ask(self, service: str, request: bytes) -> bytes:
        """Something else that the serving process does for all workers. Raises StoreError."""
        reply = await self._connection.ask(
            lambda number: ServiceCall(number, service, request), _SERVICE_SECONDS, len(request)
        )
        return _read_value(reply) or b""

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        return (await self.read_groups((keys,)))[0]

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[tuple[str, bytes] | None]:
        nothing: list[tuple[str, bytes] | None] = [None] * len(groups)
        if not self._is_open or not any(groups):
            return nothing
        try:
            reply = await self._connection.ask(
                lambda number: ReadCall(number, self._place, groups), _READ_SECONDS
            )
        except StoreError:
            return nothing
        return list(reply.records) if isinstance(reply, RecordsReply) else nothing

    async def read(self, key: str) -> bytes | None:
        found = await self.read_first((key,))
        return None if found is None else found[1]

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        if not self._is_open:
            return []
        try:
            reply = await self._connection.ask(
                lambda number: ScanCall(number, self._place, prefix), _READ_SECONDS
            )
        except StoreError:
            return []
        found = reply.records if isinstance(reply, RecordsReply) else ()
        return [record for record in found if record is not None]

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        check_key(key)
        if self._is_open:
            self._connection.tell(WriteCall(self._place, key, value, keep_seconds), len(value) + 1)

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        await self._write(key, value, keep_seconds, is_new=False)

    async def write_new(self, key: str, value: bytes, *, keep_seconds: float) -> bytes:
        stored = _read_value(await self._write(key, value, keep_seconds, is_new=True))
        return value if stored is None else stored

    def delete(self, key: str) -> None:
        check_key(key)
        if self._is_open:
            self._connection.tell(DeleteCall(self._place, key))

    async def take(self, key: str) -> bytes | None:
        if not self._is_open:
            return None
        try:
            return _read_value(
                await self._connection.ask(lambda number: TakeCall(number, self._place, key), _READ_SECONDS)
            )
        except StoreError:
            return None

    async def purge(self, tag: str) -> int:
        reply = await self._connection.ask(lambda number: PurgeCall(number, self._place, tag), inf)
        return _read_number(reply)

    async def _write(self, key: str, value: bytes, keep_seconds: float, *, is_new: bool) -> StoreAnswer:
        check_key(key)
        if not self._is_open:
            raise Unusable("the store is closed")
        return await self._connection.ask(
            lambda number: DurableCall(number, self._place, key, value, keep_seconds, is_new),
            _WRITE_SECONDS,
            len(value) + 1,
        )


class ServedLeases:
    """If the serving process cannot be reached, this one ends soon, too. Until then it is alone."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def claim(self, key: str, rivals: Sequence[str], *, keep_seconds: float) -> Lease | Held:
        asking = asyncio.ensure_future(
            self._connection.ask(lambda number: ClaimCall(number, key, rivals, keep_seconds), _READ_SECONDS)
        )
        try:
            reply = await asyncio.shield(asking)
        except StoreError:
            return Lease(key, 0)
        except asyncio.CancelledError:
            # It may still be granted, and would be held until its time is over.
            asking.add_done_callback(lambda done: self._give_back(key, done))
            raise
        if isinstance(reply, HeldReply):
            return Held(reply.key, reply.fence, reply.seconds_left)
        return Lease(key, _read_number(reply))

    async def renew(self, lease: Lease, *, keep_seconds: float) -> bool:
        if not lease.fence:
            return True
        try:
            reply = await self._connection.ask(
                lambda number: RenewCall(number, lease.key, lease.fence, keep_seconds), _READ_SECONDS
            )
        except StoreError:
            return True
        return _read_number(reply) == 1

    async def write(self, lease: Lease, key: str, value: bytes, *, keep_seconds: float) -> bool:
        check_key(key)
        reply = await self._connection.ask(
            lambda number: LeasedCall(number, lease.key, lease.fence, key, value, keep_seconds),
            _WRITE_SECONDS,
            len(value) + 1,
        )
        return _read_number(reply) == 1

    async def release(self, lease: Lease) -> None:
        self._connection.tell(ReleaseCall(lease.key, lease.fence))

    async def wait(self, held: Held) -> None:
        """The serving process knows of renewals, so this returns when the lease has really ended."""
        try:
            await self._connection.ask(lambda number: WaitCall(number, held.key, held.fence), inf)
        except StoreError:
            return

    def _give_back(self, key: str, done: "asyncio.Future[StoreAnswer]") -> None:
        if done.cancelled() or done.exception() is not None:
            return
        reply = done.result()
        if isinstance(reply, NumberReply):
            self._connection.tell(ReleaseCall(key, reply.result))


class ServedNews:
    """generation: always the same, because the connection lasts as long as this process."""

    generation = 0

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    def announce(self, tag: str, text: str) -> None:
        self._connection.tell(AnnounceCall(tag, text))

    def subscribe(self, listener: Listener) -> None:
        self._connection.listen(listener)


def _read_value(reply: StoreAnswer) -> bytes | None:
    return reply.value if isinstance(reply, ValueReply) else None


def _read_number(reply: StoreAnswer) -> int:
    return reply.result if isinstance(reply, NumberReply) else 0
