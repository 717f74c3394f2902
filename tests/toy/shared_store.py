"""A store in memory that several gateways of one test share, with real leases and real news.

    server = ToyServer()
    one, other = server.connect(), server.connect()  # one for each process

Every operation of a connection waits for at least one round of the event loop, as a network would, and queued
writes are seen by the other connections later. `server.pause` may be another wait, for drawn interleavings.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from gateway.store import StoreError
from gateway.store.keys import find_tag
from gateway.store.leases import Held, Lease
from gateway.store.news import Listener
from gateway.store.record import check_key


class _Record(NamedTuple):
    value: bytes
    ends: float


class _Write(NamedTuple):
    """record None: a deletion. is_new: it is left out if the server has a record by then."""

    record: _Record | None
    is_new: bool = False


@dataclass
class _Holding:
    fence: int
    ends: float


async def _next_round() -> None:
    await asyncio.sleep(0)


class ToyServer:
    """clock: of records and leases. A wait for a lease takes real time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.pause: Callable[[], Awaitable[None]] = _next_round
        self.records: dict[str, _Record] = {}
        self.holdings: dict[str, _Holding] = {}
        self.connections: list[SharedStore] = []
        # What tests look at.
        self.claims = 0
        self.renewals = 0
        self.fence = 0
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def connect(self) -> "SharedStore":
        """A store for one process. It has to be opened."""
        store = SharedStore(self)
        self.connections.append(store)
        return store

    def end_leases(self) -> None:
        """As if every holder were dead, or paused, for longer than its lease."""
        ended = list(self.holdings)
        self.holdings.clear()
        for key in ended:
            self.wake(key)

    def take_over(self) -> None:
        """As if other processes had taken over from every holder."""
        for holding in self.holdings.values():
            self.fence += 1
            holding.fence = self.fence

    def find_holding(self, key: str) -> _Holding | None:
        holding = self.holdings.get(key)
        return holding if holding is not None and holding.ends > self.clock() else None

    def find_record(self, key: str) -> _Record | None:
        record = self.records.get(key)
        return record if record is not None and record.ends > self.clock() else None

    def count_waiting(self) -> int:
        """How many connections wait for a lease."""
        return sum(map(len, self._waiting.values()))

    async def wait_for(self, key: str, seconds: float) -> None:
        event = asyncio.Event()
        waiting = self._waiting.setdefault(key, set())
        waiting.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            waiting.discard(event)

    def wake(self, key: str) -> None:
        for event in self._waiting.get(key, ()):
            event.set()


class SharedStore:
    """What one process sees of the server."""

    is_shared = True

    def __init__(self, server: ToyServer) -> None:
        self.server = server
        self.leases = SharedLeases(self)
        self.news = SharedNews(server, self)
        # Round trips so far, and those that only read.
        self.trips = 0
        self.reads = 0
        self.is_cut = False
        self._is_open = False
        # In the order in which they were queued.
        self._queued: dict[str, _Write] = {}
        self._flushing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        if self._is_open and not self.is_cut:
            self.flush()
        self._is_open = False
        self._queued.clear()

    def cut(self) -> None:
        """The server cannot be reached from now on."""
        self.is_cut = True
        for key in list(self.server.holdings):
            self.server.wake(key)

    async def mend(self) -> None:
        """It can be reached again. What was announced meanwhile is lost."""
        self.is_cut = False
        self.news.generation += 1
        await self.trip()
        self.flush()

    async def trip(self) -> None:
        self.trips += 1
        await self.server.pause()

    # Reads

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        return (await self.read_groups([keys]))[0]

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[tuple[str, bytes] | None]:
        await self._read()
        return [self._find_first(keys) for keys in groups]

    async def read(self, key: str) -> bytes | None:
        await self._read(key)
        return self._find(key)

    async def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        await self._read(prefix)
        keys = {key for key in [*self.server.records, *self._queued] if key.startswith(prefix)}
        found = ((key, self._find(key)) for key in sorted(keys))
        return [(key, value) for key, value in found if value is not None]

    async def _read(self, key: str = "") -> None:
        """What conversations did is read in the background: no request waits for it."""
        self.reads += not key.startswith("activity:")
        await self.trip()

    def _find_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        found = ((key, self._find(key)) for key in keys)
        return next(((key, value) for key, value in found if value is not None), None)

    def _find(self, key: str) -> bytes | None:
        if not self._is_open:
            return None
        stored = self.server.find_record(key) if not self.is_cut else None
        queued = self._queued.get(key)
        if queued is None or (queued.is_new and stored is not None):
            return stored.value if stored is not None else None
        record = queued.record
        return record.value if record is not None and record.ends > self.server.clock() else None

    # Writes

    def write(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        self._queue(key, _Write(self._make_record(value, keep_seconds)))

    def delete(self, key: str) -> None:
        self._queue(key, _Write(None))

    def keep(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """Written when the server can be reached, if it has no record by then."""
        self._queue(key, _Write(self._make_record(value, keep_seconds), is_new=True))

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        check_key(key)
        await self.trip()
        self.write_now(key, value, keep_seconds=keep_seconds)

    def write_now(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        """With all that was queued before it."""
        self._check_reachable()
        self.write(key, value, keep_seconds=keep_seconds)
        self.flush()

    async def write_new(self, key: str, value: bytes, *, keep_seconds: float) -> bytes:
        await self.trip()
        self._check_reachable()
        known = self._find(key)
        if known is None:
            self.write(key, value, keep_seconds=keep_seconds)
        self.flush()
        return value if known is None else known

    async def take(self, key: str) -> bytes | None:
        await self.trip()
        value = self._find(key)
        self._queued.pop(key, None)
        if not self.is_cut:
            self.server.records.pop(key, None)
        return value

    async def purge(self, tag: str) -> int:
        await self.trip()
        self._check_reachable()
        self.flush()
        keys = [key for key in self.server.records if find_tag(key) == tag]
        for key in keys:
            del self.server.records[key]
        return len(keys)

    def _make_record(self, value: bytes, keep_seconds: float) -> _Record:
        return _Record(value, self.server.clock() + keep_seconds)

    def _check_reachable(self) -> None:
        if self.is_cut or not self._is_open:
            raise StoreError("the toy store cannot be reached")

    def _queue(self, key: str, write: _Write) -> None:
        check_key(key)
        if not self._is_open:
            return
        self._queued.pop(key, None)
        self._queued[key] = write
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush_soon())

    async def _flush_soon(self) -> None:
        await self.trip()
        if not self.is_cut:
            self.flush()

    def flush(self) -> None:
        records = self.server.records
        for key, write in self._queued.items():
            if write.is_new and self.server.find_record(key) is not None:
                continue
            if write.record is None:
                records.pop(key, None)
            else:
                records[key] = write.record
        self._queued.clear()


class SharedLeases:
    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._server = store.server

    async def claim(self, key: str, rivals: Sequence[str], *, keep_seconds: float) -> Lease | Held:
        await self._store.trip()
        server = self._server
        if self._store.is_cut:
            return Lease(key, 0)
        server.claims += 1
        for each in (key, *rivals):
            holding = server.find_holding(each)
            if holding is not None:
                return Held(each, holding.fence, holding.ends - server.clock())
        server.fence += 1
        server.holdings[key] = _Holding(server.fence, server.clock() + keep_seconds)
        return Lease(key, server.fence)

    async def renew(self, lease: Lease, *, keep_seconds: float) -> bool:
        await self._store.trip()
        if self._is_alone(lease):
            return True
        self._server.renewals += 1
        holding = self._find_own(lease)
        if holding is not None:
            holding.ends = self._server.clock() + keep_seconds
        return holding is not None

    async def write(self, lease: Lease, key: str, value: bytes, *, keep_seconds: float) -> bool:
        await self._store.trip()
        if self._is_alone(lease):
            self._store.keep(key, value, keep_seconds=keep_seconds)
            return True
        if self._find_own(lease) is None:
            return False
        self._store.write_now(key, value, keep_seconds=keep_seconds)
        return True

    async def release(self, lease: Lease) -> None:
        await self._store.trip()
        if not self._is_alone(lease) and self._find_own(lease) is not None:
            del self._server.holdings[lease.key]
            self._server.wake(lease.key)

    async def wait(self, held: Held) -> None:
        await self._store.trip()
        holding = self._server.find_holding(held.key)
        if holding is not None and holding.fence == held.fence and not self._store.is_cut:
            await self._server.wait_for(held.key, holding.ends - self._server.clock())

    def _is_alone(self, lease: Lease) -> bool:
        return self._store.is_cut or not lease.fence

    def _find_own(self, lease: Lease) -> _Holding | None:
        holding = self._server.find_holding(lease.key)
        return holding if holding is not None and holding.fence == lease.fence else None


class SharedNews:
    def __init__(self, server: ToyServer, store: SharedStore) -> None:
        self.generation = 0
        self.listeners: list[Listener] = []
        self._server = server
        self._store = store

    def announce(self, tag: str, text: str) -> None:
        if not self._store.is_cut:
            asyncio.get_running_loop().call_soon(self._tell, tag, text)

    def subscribe(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def _tell(self, tag: str, text: str) -> None:
        """What was queued before is seen by the others before they hear of it."""
        self._store.flush()
        for other in self._server.connections:
            if other is not self._store and not other.is_cut:
                for listener in other.news.listeners:
                    listener(tag, text)
