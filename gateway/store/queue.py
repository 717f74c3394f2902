"""What every store does in front of its backend: writes wait in memory, the newest of each key, and go out in
order and in batches. Reads see what waits. A backend that is away or full is tried again.
Knows nothing of SQL or Redis. All of it runs on the event loop.
"""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar

from gateway.store.interface import (
    LATEST,
    SOON,
    Found,
    HeldLease,
    HeldPlace,
    Key,
    Lease,
    ListedRecord,
    Listener,
    Lookup,
    StoreError,
    Unknown,
    Unusable,
)
from gateway.store.waiting import (
    FREED,
    Deleted,
    Drop,
    LetGo,
    News,
    NumberedPurge,
    Put,
    Release,
    Take,
    Waiting,
    Written,
    choose_first,
    find_overlay,
)

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# Minutes of heavy traffic (heads are some KB each).
MAX_WAITING_BYTES: Final = 64 << 20
# A batch is one transaction, or one script call: other processes wait for so long.
_BATCH_RECORDS: Final = 500
_BATCH_BYTES: Final = 4 << 20
_RETRY_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 5.0
# Admission waits no longer for the counters of a store that is far, or away.
_SHORT_ADMISSION_SECONDS: Final = 0.25
# Clocks of leases are coarse. A waiter that asks again at once would only be told "held" once more.
_LEAST_WAIT_SECONDS: Final = 0.01
# Clocks are set back, too: then less is left than there was.
_MOST_WAIT_SECONDS: Final = 5.0
# A release that is heard of before the waiter begins to wait. More are never under way at once.
_KEPT_RELEASES: Final = 1_000
# Places that one call gives back before it takes one. More wait only while the store is away.
_MOST_LEAVING: Final = 1_000


class QueuedStore(ABC):
    """A subclass is a backend: what is abstract here. It calls `_hear`, `_learn` and `_miss`.

    Listeners are called in the loop's next round: one that raises ends nothing but itself.
    """

    # Admission of a request waits so long for the counters of all processes; then each process counts alone.
    _admission_seconds: float = _SHORT_ADMISSION_SECONDS

    def __init__(self, shown: str, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        """shown: the name of the store in log lines."""
        self.shown = shown
        self._max_waiting_bytes = max_waiting_bytes
        self._queue: OrderedDict[Waiting, None] = OrderedDict()
        self._flying: Sequence[Waiting] = ()
        # What waits for each key, oldest first; also what is on its way.
        self._by_key: dict[Key, list[Waiting]] = {}
        # Places that are given back, and not written yet: by tag and name their members.
        self._leaving: dict[tuple[str, str], dict[str, None]] = {}
        self._used_bytes = 0
        self._known = 0
        self._is_away = False
        self._is_silent = False
        self._retry_at = -math.inf
        self._has_dropped = False
        self._listeners: list[Listener] = []
        self._waiters: dict[tuple[str, str], set[asyncio.Future[None]]] = {}
        self._freed: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._late: set[asyncio.Future[Any]] = set()
        self._is_open = False
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._due_at = math.inf

    # Of the backend. Each raises Unknown if it is late or away, and Unusable if it refuses.

    @abstractmethod
    async def _connect(self) -> int:
        """The number of the newest purge, which this process need not hear of; 0 if the store is away. Raises
        StoreRefused only.
        """

    @abstractmethod
    async def _disconnect(self) -> None:
        """For a bounded time. Does not raise."""

    @abstractmethod
    async def _read(self, tag: str, lookups: Sequence[Lookup], wait: float) -> list[Found | None]:
        """As `Store.get`, of what is written. Raises Unknown after `wait` at the latest, see `_in_time`."""

    @abstractmethod
    async def _list(self, kind: str, tag: str | None, group: str | None, wait: float) -> list[ListedRecord]:
        """As `Store.list`, of what is written."""

    @abstractmethod
    async def _write(self, batch: Sequence[Waiting]) -> Written:
        """All of it in this order, durably if one has a promise; or an error, and it is written again later.

        It refuses a Put whose `known` is below the number of a purge of its tag or of its group, and one
        whose `wants_lease` is not the lease any more. It may take as long as it needs.
        """

    @abstractmethod
    async def _delete(self, tag: str, group: str | None, known: int) -> Deleted:
        """As `Store.delete`. First a tombstone with a new number, which other processes hear of; then the
        rest.
        """

    @abstractmethod
    async def _claim(self, tag: str, name: str, ttl: float) -> Lease | HeldLease:
        """Its fence is larger than every earlier one of the name, also if that lease is long over."""

    @abstractmethod
    async def _renew(self, lease: Lease, ttl: float) -> bool:
        """Only if no other process has held it since."""

    @abstractmethod
    async def _count(self, tag: str, name: str, cost: float, most: float, window: float) -> float:
        """As `Store.count`, with `SlidingWindow`."""

    @abstractmethod
    async def _hold(self, place: HeldPlace, leaving: Sequence[str], most: int, ttl: float) -> bool:
        """As `Store.hold`. leaving: members that give their places back before."""

    # For the backend.

    def _note_trouble(self, error: StoreError) -> None:
        _log.error("store %s takes no writes, they wait in memory: %s", self.shown, error)

    def _find_patience(self, wait: float) -> float:
        """For what is promised, of one who would wait for so long: less while it is known to be in vain."""
        return wait

    def _note_taken(self) -> None:
        _log.info("store %s takes writes again", self.shown)

    def _hear(self, tag: str, text: str) -> None:
        """Another process has published this, or ended a lease."""
        if text.startswith(FREED):
            _, fence, name = text.split(" ", 2)
            self._free(Lease(tag, name, int(fence)))
            return
        for listener in self._listeners:
            asyncio.get_running_loop().call_soon(listener.on_news, tag, text)

    def _learn(self, purges: Iterable[NumberedPurge]) -> None:
        """What waits and was queued without knowing these is forgotten, and so is what listeners remember."""
        new = [purge for purge in purges if purge.number > self._known]
        if not new:
            return
        self._known = max(purge.number for purge in new)
        numbers = {(purge.tag, purge.group): purge.number for purge in sorted(new)}
        for waiting in (*self._flying, *self._queue):
            if isinstance(waiting, Put) and waiting.known < max(
                numbers.get((waiting.key.tag, None), 0), numbers.get((waiting.key.tag, waiting.group), 0)
            ):
                waiting.is_purged = True
                self._queue.pop(waiting, None)
                self._forget(waiting)
                waiting.answer(None)
        loop = asyncio.get_running_loop()
        for purge in new:
            for listener in self._listeners:
                loop.call_soon(listener.on_purged, purge.tag, purge.group, purge.number)

    def _take_as_known(self, newest: int) -> None:
        """So far the number of the newest purge was not known. What waits was queued after it."""
        self._known = newest
        for waiting in (*self._flying, *self._queue):
            waiting.known = max(waiting.known, newest)

    def _miss(self) -> None:
        """News may have been missed, or records lost."""
        for name in list(self._waiters):
            self._wake_waiters(name)
        for listener in self._listeners:
            asyncio.get_running_loop().call_soon(listener.on_gap)

    async def _in_time(self, work: Awaitable[_Result], wait: float) -> _Result:
        """Raises Unknown after so many seconds. The work goes on, and nobody looks at what comes of it."""
        future = asyncio.ensure_future(work)
        # Also if the one who asked is cancelled.
        self._late.add(future)
        future.add_done_callback(self._end_late)
        done, _ = await asyncio.wait({future}, timeout=wait)
        if done:
            return future.result()
        raise Unknown("the store does not answer in time")

    # Store

    @property
    def is_away(self) -> bool:
        """Whether the last write failed."""
        return self._is_away

    @property
    def waiting_bytes(self) -> int:
        return self._used_bytes

    async def open(self) -> None:
        self._known = await self._connect()
        self._is_open = True
        self._task = asyncio.create_task(self._run(), name="store-writer")

    async def close(self) -> None:
        if self._task is None:
            return
        self._is_open = False
        self._set_due(-math.inf)
        done, _ = await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        self._task = None
        lost = (*self._flying, *self._queue)
        if lost:
            text = "store %s: %d writes are lost, it could not take them before the end"
            _log.warning(text, self.shown, len(lost))
        for waiting in lost:
            waiting.refuse(Unusable("the store is closed"))
        await self._disconnect()

    async def get(self, tag: str, lookups: Sequence[Lookup], *, wait: float = SOON) -> list[Found | None]:
        known = [self._find_waiting(tag, lookup) for lookup in lookups]
        asked = [at for at, (names, _) in enumerate(known) if names]
        found = [name_found for _, name_found in known]
        if not asked:
            return found
        self._check_open()
        stored = await _know(self._read(tag, [Lookup(lookups[at].kind, known[at][0]) for at in asked], wait))
        for at, record in zip(asked, stored, strict=True):
            if record is not None:
                found[at] = choose_first(lookups[at].names, record, found[at])
        return found

    async def list(
        self, kind: str, tag: str | None = None, group: str | None = None, *, wait: float = LATEST
    ) -> "list[ListedRecord]":
        self._check_open()
        keys = [key for key in self._by_key if key.kind == kind and tag in (None, key.tag)]
        overlays = {key: find_overlay(self._by_key[key]) for key in keys}
        records = {record.key: record for record in await _know(self._list(kind, tag, group, wait))}
        for key, (value, of_group, is_sure) in overlays.items():
            if is_sure:
                records.pop(key, None)
            if value is not None and key not in records and group in (None, of_group):
                records[key] = ListedRecord(key, of_group, value)
        return list(records.values())

    def put(self, key: Key, value: bytes, ttl: float, *, group: str = "", linger: float = 0.0) -> None:
        self._replace(Put(key=key, value=value, ttl=ttl, group=group), linger)

    def drop(self, key: Key) -> None:
        self._replace(Drop(key=key), 0.0)

    async def put_durable(  # noqa: PLR0913  # the interface
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
        put = Put(key=key, value=value, ttl=ttl, group=group, if_absent=if_absent, lease=lease)
        return await self._promise(put, wait)

    async def take(self, key: Key, *, wait: float = LATEST) -> bytes | None:
        return await self._promise(Take(key=key), wait)

    async def delete(self, tag: str, group: str | None = None) -> int:
        self._check_open()
        deleted = await self._delete(tag, group, self._known)
        self._learn(deleted.purges)
        # Listeners are told in the loop's next round, and have heard of it when this returns.
        await asyncio.sleep(0)
        return deleted.records

    async def claim(self, tag: str, name: str, *, ttl: float, wait: float = LATEST) -> Lease | HeldLease:
        if not self._is_open:
            return Lease(tag, name, 0)
        claiming = asyncio.ensure_future(self._claim(tag, name, ttl))
        try:
            done, _ = await asyncio.wait({claiming}, timeout=wait)
        except asyncio.CancelledError:
            self._give_up(claiming)
            raise
        with suppress(StoreError):
            if done:
                return claiming.result()
            self._give_up(claiming)
        return Lease(tag, name, 0)

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        if lease.is_alone or not self._is_open:
            return True
        with suppress(StoreError):
            return await self._in_time(self._renew(lease, ttl), LATEST)
        return True

    def release(self, lease: Lease) -> None:
        if not lease.is_alone:
            self._add(Release(lease=lease), 0.0)

    async def until_free(self, held: HeldLease) -> None:
        name = held.tag, held.name
        if self._freed.get(name, 0) >= held.fence:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(name, set()).add(waiter)
        try:
            seconds = min(_MOST_WAIT_SECONDS, max(_LEAST_WAIT_SECONDS, held.seconds_left))
            await asyncio.wait({waiter}, timeout=seconds)
        finally:
            others = self._waiters.get(name, set())
            others.discard(waiter)
            if not others:
                self._waiters.pop(name, None)

    async def count(self, tag: str, name: str, cost: float, most: float, window: float) -> float:
        self._check_open()
        return await self._admit(self._count(tag, name, cost, most, window))

    async def hold(self, tag: str, name: str, member: str, most: int, ttl: float) -> bool:
        self._check_open()
        # A client that sends its next request at once finds the place free that its last one has left.
        leaving = tuple(islice(self._leaving.get((tag, name), ()), _MOST_LEAVING))
        return await self._admit(self._hold(HeldPlace(tag, name, member), leaving, most, ttl))

    async def _admit(self, asked: Awaitable[_Result]) -> _Result:
        """After a silence only a short time, until one is answered."""
        is_short = self._is_away or self._is_silent
        seconds = _SHORT_ADMISSION_SECONDS if is_short else self._admission_seconds
        try:
            answer = await _know(self._in_time(asked, seconds))
        except Unknown:
            self._is_silent = True
            raise
        self._is_silent = False
        return answer

    def let_go(self, tag: str, name: str, member: str) -> None:
        self._add(LetGo(tag=tag, name=name, member=member), 0.0)

    def publish(self, tag: str, text: str) -> None:
        self._add(News(tag=tag, text=text), 0.0)

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # What waits

    def _replace(self, write: Put | Drop, linger: float) -> None:
        """The one before is never written, unless somebody waits for it or it is on its way."""
        before = self._by_key.get(write.key, ())
        if before and before[-1] in self._queue and before[-1].is_plain:
            self._queue.pop(before[-1])
            self._forget(before[-1])
        self._add(write, linger)

    def _add(self, waiting: Waiting, linger: float) -> None:
        """Raises Unusable if somebody waits for it and there is no room; ValueError as `measure`."""
        if not self._is_open:
            waiting.refuse(Unusable("the store is closed"))
            return
        waiting.known = self._known
        self._enter(waiting)
        self._make_room(waiting)
        due_at = asyncio.get_running_loop().time() + linger
        self._set_due(due_at if waiting.promise is not None else max(due_at, self._retry_at))

    def _enter(self, waiting: Waiting) -> None:
        waiting.size_bytes = waiting.measure()
        self._queue[waiting] = None
        self._used_bytes += waiting.size_bytes
        if isinstance(waiting, Put | Drop | Take):
            self._by_key.setdefault(waiting.key, []).append(waiting)
        elif isinstance(waiting, LetGo):
            self._leaving.setdefault((waiting.tag, waiting.name), {})[waiting.member] = None

    def _make_room(self, newest: Waiting) -> None:
        """The oldest go that nobody was promised; without any of these the newest is refused. Places and
        leases are always given back: their number is that of the requests.
        """
        while self._used_bytes > self._max_waiting_bytes:
            others = () if newest.size_bytes > self._max_waiting_bytes else self._queue
            oldest = next((each for each in others if each.may_be_lost), newest)
            if isinstance(oldest, LetGo | Release):
                return
            if not self._has_dropped:
                _log.warning("store %s: too much waits to be written, the oldest is dropped", self.shown)
            self._has_dropped = True
            del self._queue[oldest]
            self._forget(oldest)
            oldest.refuse(Unusable("too much waits to be written"))
            if oldest is newest:
                return

    def _forget(self, waiting: Waiting) -> None:
        """It waits no more. The queue itself is left to the caller."""
        if isinstance(waiting, Put | Drop | Take) and waiting in self._by_key.get(waiting.key, ()):
            others = self._by_key[waiting.key]
            others.remove(waiting)
            if not others:
                del self._by_key[waiting.key]
        elif isinstance(waiting, LetGo):
            members = self._leaving.get((waiting.tag, waiting.name), {})
            members.pop(waiting.member, None)
            if not members:
                self._leaving.pop((waiting.tag, waiting.name), None)
        self._used_bytes -= waiting.size_bytes

    async def _promise(self, waiting: Put | Take, wait: float) -> bytes | None:
        promise: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        waiting.promise = promise
        self._add(waiting, 0.0)
        try:
            done, _ = await asyncio.wait({promise}, timeout=self._find_patience(wait))
        finally:
            waiting.promise = None
            waiting.is_late = not promise.done()
        if done:
            return promise.result()
        raise Unknown("the store does not answer in time; what it was given waits in memory")

    def _find_waiting(self, tag: str, lookup: Lookup) -> tuple[Sequence[str], Found | None]:
        """The names that the store is to be asked for, and what waits for the first of the names that has
        something waiting.
        """
        if not self._by_key:
            return lookup.names, None
        asked: list[str] = []
        for name in lookup.names:
            overlay = find_overlay(self._by_key.get(Key(tag, lookup.kind, name), ()))
            if not overlay.is_sure:
                asked.append(name)
            if overlay.value is not None:
                return asked, Found(name, overlay.value)
        return asked, None

    # The task that writes

    async def _run(self) -> None:
        while self._is_open or self._queue:
            await self._until_due()
            self._flying = self._take_batch()
            try:
                written = await self._write(self._flying) if self._flying else Written(())
            except Exception as error:  # noqa: BLE001 - the edge: if it ended, nothing would be written any more
                self._put_back(error if isinstance(error, StoreError) else Unusable(type(error).__name__))
                if not self._is_open:
                    return
            else:
                self._settle(written)

    def _set_due(self, due_at: float) -> None:
        if due_at < self._due_at:
            self._due_at = due_at
            self._wake.set()

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while (seconds := self._due_at - loop.time()) > 0 and self._is_open:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                    await self._wake.wait()

    def _take_batch(self) -> Sequence[Waiting]:
        """In the order of the queue, also what would linger: what is durable stands on what came before."""
        batch, size = list[Waiting](), 0
        while self._queue and len(batch) < _BATCH_RECORDS and size < _BATCH_BYTES:
            waiting, _ = self._queue.popitem(last=False)
            batch.append(waiting)
            size += waiting.size_bytes
        self._due_at = -math.inf if self._queue else math.inf
        return batch

    def _settle(self, written: Written) -> None:
        batch, self._flying = self._flying, ()
        if batch and self._is_away:
            self._note_taken()
            self._is_away, self._has_dropped, self._retry_at = False, False, -math.inf
        for waiting, result in zip(batch, written.results, strict=True):
            if not waiting.is_purged:
                self._forget(waiting)
                waiting.answer(result)
            if isinstance(waiting, Release):
                self._free(waiting.lease)
            if isinstance(waiting, Take) and waiting.is_late and waiting.taken is not None:
                self._return_taken(waiting.taken, waiting.known)
        self._learn(written.purges)

    def _return_taken(self, taken: Put, known: int) -> None:
        """Also at the end of the process. Not behind a newer write, nor if it may have been purged since."""
        if known == self._known and taken.key not in self._by_key:
            taken.known = known
            self._enter(taken)
            self._set_due(-math.inf)

    def _put_back(self, error: StoreError) -> None:
        """To its place before the others, but for what a newer one of its key replaces."""
        if not self._is_away:
            self._note_trouble(error)
        self._is_away = True
        self._retry_at = asyncio.get_running_loop().time() + _RETRY_SECONDS
        batch, self._flying = self._flying, ()
        for waiting in reversed(batch):
            if not waiting.is_purged:
                self._queue[waiting] = None
                self._queue.move_to_end(waiting, last=False)
        for waiting in batch:
            if isinstance(waiting, Put | Drop) and not waiting.is_purged and self._is_replaced(waiting):
                del self._queue[waiting]
                self._forget(waiting)
        if isinstance(error, Unusable):
            self._refuse_promised(error)
        self._due_at = self._retry_at if self._queue else math.inf

    def _is_replaced(self, waiting: Put | Drop) -> bool:
        others = self._by_key[waiting.key]
        return waiting.is_plain and any(each.is_plain for each in others[others.index(waiting) + 1 :])

    def _refuse_promised(self, error: StoreError) -> None:
        for waiting in [each for each in self._queue if each.promise is not None]:
            del self._queue[waiting]
            self._forget(waiting)
            waiting.refuse(error)

    # Leases and listeners

    def _free(self, lease: Lease) -> None:
        name = lease.tag, lease.name
        self._freed[name] = max(lease.fence, self._freed.pop(name, 0))
        if len(self._freed) > _KEPT_RELEASES:
            self._freed.popitem(last=False)
        self._wake_waiters(name)

    def _wake_waiters(self, name: tuple[str, str]) -> None:
        for waiter in self._waiters.pop(name, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _give_up(self, claiming: "asyncio.Future[Lease | HeldLease]") -> None:
        """A lease that comes late is given back at once: its process has gone on without it."""

        def give_back(claimed: "asyncio.Future[Lease | HeldLease]") -> None:
            has_answer = not claimed.cancelled() and claimed.exception() is None
            if has_answer and isinstance(lease := claimed.result(), Lease):
                self.release(lease)

        claiming.add_done_callback(give_back)

    def _end_late(self, future: "asyncio.Future[Any]") -> None:
        self._late.discard(future)
        if not future.cancelled():
            future.exception()  # looked at, so that nothing is logged

    def _check_open(self) -> None:
        if not self._is_open:
            raise Unknown("the store is closed")


async def _know(asked: Awaitable[_Result]) -> _Result:
    """A store that refuses to be read says no more than one that is away. Raises Unknown for either."""
    try:
        return await asked
    except Unusable as error:
        raise Unknown(str(error)) from error
