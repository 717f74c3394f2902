"""A store in memory that several gateways of one test share, with real leases and real news.

    server = ToyServer()
    one, other = server.connect(), server.connect()  # one for each process

Every operation of a connection that waits does so for at least one round of the event loop, as a network
would, and queued writes are seen by the other connections later.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from gateway.store.interface import (
    LATEST,
    SOON,
    Found,
    HeldLease,
    Key,
    Lease,
    ListedRecord,
    Listener,
    Lookup,
    Unknown,
    Unusable,
)


class _Record(NamedTuple):
    value: bytes
    ends: float
    group: str


class _Write(NamedTuple):
    """record None: a deletion. is_new: it is left out if the server has a record by then."""

    record: _Record | None
    is_new: bool = False


@dataclass
class _Holding:
    fence: int
    ends: float


_LeaseName = tuple[str, str]


class ToyServer:
    """clock: of records and leases. A wait for a lease takes real time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, is_shared: bool = True) -> None:
        self.clock = clock
        self.is_shared = is_shared
        self.records: dict[Key, _Record] = {}
        self.holdings: dict[_LeaseName, _Holding] = {}
        self.counts: dict[tuple[str, str], float] = {}
        self.connections: list[SharedStore] = []
        # What tests look at.
        self.claims = 0
        self.fence = 0
        self._waiting: dict[_LeaseName, set[asyncio.Event]] = {}

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

    def find_holding(self, key: _LeaseName) -> _Holding | None:
        holding = self.holdings.get(key)
        return holding if holding is not None and holding.ends > self.clock() else None

    def find_record(self, key: Key) -> _Record | None:
        record = self.records.get(key)
        return record if record is not None and record.ends > self.clock() else None

    def count_waiting(self) -> int:
        """How many connections wait for a lease."""
        return sum(map(len, self._waiting.values()))

    async def wait_for(self, key: _LeaseName, seconds: float) -> None:
        event = asyncio.Event()
        waiting = self._waiting.setdefault(key, set())
        waiting.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            waiting.discard(event)

    def wake(self, key: _LeaseName) -> None:
        for event in self._waiting.get(key, ()):
            event.set()


class SharedStore:
    """What one process sees of the server."""

    def __init__(self, server: ToyServer) -> None:
        self.server = server
        # Round trips so far that only read.
        self.reads = 0
        self.is_cut = False
        # Whether it refuses what is to be durable.
        self.is_full = False
        self.listeners: list[Listener] = []
        self._is_open = False
        # In the order in which they were queued.
        self._queued: dict[Key, _Write] = {}

    @property
    def is_shared(self) -> bool:
        return self.server.is_shared

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
        for listener in self.listeners:
            listener.on_gap()
        await self.trip()
        self.flush()

    async def trip(self) -> None:
        await asyncio.sleep(0)

    def list_names(self, kind: str = "") -> list[str]:
        """What is stored or queued, of all kinds without one."""
        self.flush()
        keys = [key for key in self.server.records if self.server.find_record(key) is not None]
        return sorted(key.name for key in keys if kind in ("", key.kind))

    def _check(self) -> None:
        if self.is_cut:
            raise Unknown("the toy is away")

    # Reads

    async def get(self, tag: str, lookups: Sequence[Lookup], *, wait: float = SOON) -> list[Found | None]:
        self.reads += 1
        await self.trip()
        return [self._find_first(tag, lookup) for lookup in lookups]

    def _find_first(self, tag: str, lookup: Lookup) -> Found | None:
        for name in lookup.names:
            key = Key(tag, lookup.kind, name)
            queued = self._queued.get(key)
            record = queued.record if queued is not None else None
            if queued is None:
                self._check()
                record = self.server.find_record(key)
            if record is not None:
                return Found(name, record.value)
        return None

    # Writes

    def put(self, key: Key, value: bytes, ttl: float, *, group: str = "", linger: float = 0.0) -> None:
        self._queue(key, _Write(_Record(value, self.server.clock() + ttl, group)))

    def drop(self, key: Key) -> None:
        self._queue(key, _Write(None))

    async def put_durable(
        self,
        key: Key,
        value: bytes,
        ttl: float,
        *,
        group: str = "",
        if_absent: bool = False,
        lease: Lease | None = None,
        wait: float = LATEST,
    ) -> bytes | None:
        await self.trip()
        if not self._is_open:
            raise Unusable("the toy is closed")
        if self.is_full:
            raise Unusable("the toy is full")
        record, is_new = _Record(value, self.server.clock() + ttl, group), if_absent
        is_alone = lease is not None and lease.is_alone
        if self.is_cut:
            self._queue(key, _Write(record, is_new=is_new or lease is not None))
            raise Unknown("the toy is away")
        self.flush()
        if lease is not None and not is_alone and self._find_own(lease) is None:
            return None
        known = self.server.find_record(key) if is_new or is_alone else None
        if known is None:
            self.server.records[key] = record
        return value if known is None else known.value

    async def take(self, key: Key, *, wait: float = LATEST) -> bytes | None:
        await self.trip()
        self._check()
        self.flush()
        record = self.server.find_record(key)
        self.server.records.pop(key, None)
        return record.value if record is not None else None

    async def delete(self, tag: str, group: str | None = None) -> int:
        await self.trip()
        self._check()
        for store in self.server.connections:
            store.forget(tag, group)
        gone = [
            key
            for key, record in self.server.records.items()
            if key.tag == tag and group in (None, record.group)
        ]
        for key in gone:
            del self.server.records[key]
        return len(gone)

    def forget(self, tag: str, group: str | None) -> None:
        for key, write in list(self._queued.items()):
            if key.tag == tag and (group is None or (write.record and write.record.group == group)):
                del self._queued[key]
        for listener in self.listeners:
            listener.on_purged(tag, group, time.time_ns() // 1_000)

    def flush(self) -> None:
        """What is queued is with the server."""
        if self.is_cut:
            return
        for key, write in self._queued.items():
            if write.record is None:
                self.server.records.pop(key, None)
            elif not (write.is_new and self.server.find_record(key) is not None):
                self.server.records[key] = write.record
        self._queued.clear()

    def _queue(self, key: Key, write: _Write) -> None:
        if not self._is_open:
            return
        self._queued.pop(key, None)
        self._queued[key] = write
        asyncio.get_running_loop().call_soon(self.flush)

    # Leases

    async def claim(self, tag: str, name: str, *, ttl: float, wait: float = LATEST) -> Lease | HeldLease:
        await self.trip()
        server = self.server
        server.claims += 1
        if self.is_cut:
            return Lease(tag, name, 0)
        holding = server.find_holding((tag, name))
        if holding is not None:
            return HeldLease(tag, name, holding.fence, holding.ends - server.clock())
        server.fence += 1
        server.holdings[tag, name] = _Holding(server.fence, server.clock() + ttl)
        return Lease(tag, name, server.fence)

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        await self.trip()
        if self.is_cut or lease.is_alone:
            return True
        holding = self._find_own(lease)
        if holding is not None:
            holding.ends = self.server.clock() + ttl
        return holding is not None

    def release(self, lease: Lease) -> None:
        if not self.is_cut and self._find_own(lease) is not None:
            self.flush()
            del self.server.holdings[lease.tag, lease.name]
            self.server.wake((lease.tag, lease.name))

    async def until_free(self, held: HeldLease) -> None:
        await self.trip()
        holding = self.server.find_holding((held.tag, held.name))
        if holding is not None and holding.fence == held.fence and not self.is_cut:
            await self.server.wait_for((held.tag, held.name), holding.ends - self.server.clock())

    def _find_own(self, lease: Lease) -> _Holding | None:
        holding = self.server.find_holding((lease.tag, lease.name))
        return holding if holding is not None and holding.fence == lease.fence else None

    # Counters, whose windows never pass

    async def count(self, tag: str, name: str, cost: float, most: float, window: float) -> float:
        used = self.server.counts.get((tag, name), 0.0)
        if cost > 0 and used + cost > most:
            return window
        self.server.counts[tag, name] = used + cost
        return 0.0

    async def hold(self, tag: str, name: str, member: str, most: int, ttl: float) -> bool:
        return True

    def let_go(self, tag: str, name: str, member: str) -> None:
        return

    # News

    def publish(self, tag: str, text: str) -> None:
        if not self.is_cut:
            asyncio.get_running_loop().call_soon(self._tell, tag, text)

    def subscribe(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def _tell(self, tag: str, text: str) -> None:
        """What was queued before is seen by the others before they hear of it."""
        self.flush()
        for other in self.server.connections:
            if other is not self and not other.is_cut:
                for listener in other.listeners:
                    listener.on_news(tag, text)

    # The name hides the builtin one from here on.

    async def list(
        self, kind: str, tag: str | None = None, group: str | None = None, *, wait: float = LATEST
    ) -> list[ListedRecord]:
        self.reads += 1
        await self.trip()
        self._check()
        self.flush()
        return [
            ListedRecord(key, record.group, record.value)
            for key, record in self.server.records.items()
            if key.kind == kind and tag in (None, key.tag) and group in (None, record.group)
            if self.server.find_record(key) is not None
        ]
