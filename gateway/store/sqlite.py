"""The store in one SQLite file that every process opens, or in memory.

One thread writes, one reads, one lists; the event loop does none of it. What other processes do is seen by
looking at the number that SQLite changes with each of their transactions.
"""

import asyncio
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from gateway.store import tables
from gateway.store.database import LOCK_SECONDS, Database, Session, mapped_errors, transaction
from gateway.store.folder import STATE_NAME, describe_refusal, is_full, probe, remove_set_aside
from gateway.store.interface import (
    LATEST,
    Found,
    HeldLease,
    HeldPlace,
    Lease,
    ListedRecord,
    Lookup,
    StoreError,
    StoreRefused,
    Unknown,
    Unusable,
)
from gateway.store.queue import MAX_WAITING_BYTES, QueuedStore
from gateway.store.tables import Moment
from gateway.store.waiting import Deleted, NumberedPurge, Waiting, Written

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# A request that is not recognized costs more than this wait.
_READ_SECONDS: Final = 0.5
# A thousand long conversations (measured: about 200 KB of state each); a small container has that much.
_MAX_IN_MEMORY_BYTES: Final = 256 << 20
# 1.1 % of a core while there are requests, 0.15 % at rest.
_LOOK_SECONDS: Final = 0.025
_LOOK_AT_REST_SECONDS: Final = 0.2
_BUSY_SECONDS: Final = 5.0
_SWEEP_SECONDS: Final = 10.0
_STEP_PAUSE_SECONDS: Final = 0.005
# A clock that is wrong at start can be set before anything expires.
_FIRST_EXPIRY_SECONDS: Final = 600.0
_CLOSE_SECONDS: Final = 2.0
# An eighth each time, of the originals and then of the rest.
_EVICTIONS: Final = 48
_LOOK_AGAIN_SECONDS: Final = 1.0
_SCRUB_TRIES: Final = 80


class SqliteStore(QueuedStore):
    """folder: None for a store in memory; that one drops what expires first when it is full."""

    # Workers write one after the other, and a disk can be busy for a moment: no reason to forget a limit.
    _admission_seconds = LATEST

    def __init__(
        self,
        folder: Path | None,
        *,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_in_memory_bytes: int = _MAX_IN_MEMORY_BYTES,
        sweep_seconds: float = _SWEEP_SECONDS,
        first_expiry_seconds: float = _FIRST_EXPIRY_SECONDS,
    ) -> None:
        if folder is None:
            # What waits has room in an empty store.
            max_waiting_bytes = min(max_waiting_bytes, max_in_memory_bytes // 4)
        super().__init__(str(folder or "in memory"), max_waiting_bytes=max_waiting_bytes)
        self._folder = folder
        self._sweep_seconds = sweep_seconds
        self._first_expiry_seconds = first_expiry_seconds
        self._sender = secrets.token_hex(8)
        self._database = Database(folder, max_in_memory_bytes, self._note_replaced)
        self._writing = ThreadPoolExecutor(1, "store-writer")
        # In memory there is one connection, so there is one thread.
        self._reading = ThreadPoolExecutor(1, "store-reader") if folder else self._writing
        self._listing = ThreadPoolExecutor(1, "store-lister") if folder else self._writing
        self._writer, self._reader, self._lister, self._poll = Session(), Session(), Session(), Session()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._heard = 0
        self._seen_version = 0
        self._used = asyncio.Event()
        self._used_at = 0.0
        self._is_scrub_due = False
        # The start could not read how far news and purges have come.
        self._is_lost = False

    @property
    def is_shared(self) -> bool:
        return self._folder is not None

    # Open and close

    async def _connect(self) -> int:
        self._loop = asyncio.get_running_loop()
        try:
            newest = await self._loop.run_in_executor(self._writing, self._start)
        except StoreRefused:
            self._writer.close()
            self._reader.close()
            self._shut_down()
            raise
        self._watching = asyncio.create_task(self._watch(), name="store-watch")
        return newest

    def _start(self) -> int:
        """In the writer's thread. Raises StoreRefused."""
        try:
            self._database.write(self._writer, _try_to_write)
        except StoreRefused:
            raise
        except Unknown:
            pass  # locked: what is written waits
        except StoreError as error:
            assert self._folder is not None
            cause = self._find_cause(self._folder, error)
            if not is_full(cause) or self._database.find_identity() is None:
                raise StoreRefused(describe_refusal(self._folder, cause)) from error
        return self._read_position()

    def _read_position(self) -> int:
        """Who cannot read it does so before the first write, purge or look: see `_find_position`."""
        try:
            if self._folder is not None:
                self._heard, newest = self._database.read(self._reader, tables.find_position)
                return newest
        except StoreError:
            self._is_lost = True
        return 0

    async def _find_position(self) -> None:
        """What was purged before is not new, or today's values would go. Raises StoreError."""
        if not self._is_lost:
            return
        self._heard, newest = await self._change(lambda connection, _: tables.find_position(connection))
        if self._is_lost:
            self._is_lost = False
            self._take_as_known(newest)
            self._miss()

    def _find_cause(self, folder: Path, error: StoreError) -> Exception:
        """sqlite does not tell a full disk from one that refuses: what the file system says about a file."""
        if isinstance(error.__cause__, OSError):
            return error.__cause__
        try:
            probe(folder)
        except OSError as refusal:
            return refusal
        return error.__cause__ if isinstance(error.__cause__, Exception) else error

    async def _disconnect(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        # Each behind what its thread still does.
        closing = [
            asyncio.wrap_future(pool.submit(session.close))
            for pool, session in (
                (self._reading, self._reader),
                (self._reading, self._poll),
                (self._listing, self._lister),
                (self._writing, self._writer),
            )
        ]
        await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        self._shut_down()

    def _shut_down(self) -> None:
        for pool in {self._writing, self._reading, self._listing}:
            pool.shutdown(wait=False, cancel_futures=True)

    # Reads

    async def _read(self, tag: str, lookups: Sequence[Lookup], wait: float) -> list[Found | None]:
        """A file nearby is late only where the whole machine is."""
        find = partial(tables.find_first, tag=tag, lookups=lookups, now=time.time())
        return await self._ask(self._reading, self._reader, find, max(wait, _READ_SECONDS))

    async def _list(self, kind: str, tag: str | None, group: str | None, wait: float) -> list[ListedRecord]:
        find = partial(tables.list_records, kind=kind, tag=tag, group=group, now=time.time())
        return await self._ask(self._listing, self._lister, find, wait)

    async def _ask(
        self,
        pool: ThreadPoolExecutor,
        session: Session,
        call: Callable[[sqlite3.Connection], _Result],
        wait: float,
    ) -> _Result:
        """One that is late and has not begun is not made at all."""
        self._note_use()
        if self._folder is None:
            asked = asyncio.wrap_future(pool.submit(self._database.write, self._writer, call))
        else:
            asked = asyncio.wrap_future(pool.submit(self._database.read, session, call))
        try:
            return await self._in_time(asked, wait)
        except Unknown:
            asked.cancel()
            raise

    # Writes

    async def _write(self, batch: Sequence[Waiting]) -> Written:
        self._note_use()
        await self._find_position()
        return await self._change(partial(tables.write_batch, batch=batch, known=self._known))

    async def _change(
        self, call: Callable[[sqlite3.Connection, Moment], _Result], wait: float | None = None
    ) -> _Result:
        """wait: who asked is gone after so many seconds, and then nothing is done."""
        until = time.monotonic() + wait if wait is not None else None

        def change(connection: sqlite3.Connection) -> _Result:
            locked_until = time.monotonic() + LOCK_SECONDS
            if until is not None and time.monotonic() > until:
                raise Unknown("the store does not answer in time")
            moment = Moment(time.time(), min(until or locked_until, locked_until), self._sender)
            return (
                call(connection, moment) if self._folder else self._change_in_memory(connection, call, moment)
            )

        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._writing, self._database.write, self._writer, change)
        except StoreRefused as error:
            raise Unusable(str(error)) from error

    def _change_in_memory(
        self,
        connection: sqlite3.Connection,
        call: Callable[[sqlite3.Connection, Moment], _Result],
        moment: Moment,
    ) -> _Result:
        """In memory the oldest go when it is full."""
        for _ in range(_EVICTIONS):
            try:
                return call(connection, moment)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
                    raise
                tables.remove_oldest(connection)
        raise Unusable("too large for a store in memory")

    async def _delete(self, tag: str, group: str | None, known: int) -> Deleted:
        self._note_use()
        await self._find_position()
        known = max(known, self._known)
        purges = await self._change(partial(tables.bury, tag=tag, group=group, known=known))
        # Also if nobody waits for the rest any more.
        self._learn(purges)
        count = await self._remove_buried(purges[-1])
        await self._scrub()
        if group is None and self._folder is not None:
            await asyncio.to_thread(_remove_set_aside, self._folder)
        return Deleted(count, purges)

    async def _remove_buried(self, purge: NumberedPurge) -> int:
        """In steps, so that other writes are not in its way for long."""
        count, step = 0, tables.DELETE_STEP
        while step == tables.DELETE_STEP:
            step = await self._change(partial(tables.remove_buried, purge=purge))
            count += step
        return count

    async def _change_soon(self, call: Callable[[sqlite3.Connection, Moment], _Result]) -> _Result:
        self._note_use()
        return await self._change(call, LATEST)

    async def _claim(self, tag: str, name: str, ttl: float) -> Lease | HeldLease:
        return await self._change_soon(partial(tables.claim_lease, tag=tag, name=name, ttl=ttl))

    async def _renew(self, lease: Lease, ttl: float) -> bool:
        return await self._change_soon(partial(tables.renew_lease, lease=lease, ttl=ttl))

    async def _count(self, tag: str, name: str, cost: float, most: float, window: float) -> float:
        return await self._change_soon(
            partial(tables.count_cost, key=(tag, name), cost=cost, limit=(most, window))
        )

    async def _hold(self, place: HeldPlace, leaving: Sequence[str], most: int, ttl: float) -> bool:
        return await self._change_soon(
            partial(tables.hold_place, place=place, leaving=leaving, most=most, ttl=ttl)
        )

    # What other processes do

    async def _watch(self) -> None:
        """Also sweeps."""
        loop = asyncio.get_running_loop()
        started = swept = loop.time()
        while True:
            await self._rest()
            try:
                if self._folder is not None and self._has_changed():
                    await self._look()
                if loop.time() - swept > self._sweep_seconds:
                    swept = loop.time()
                    await self._sweep(also_records=swept - started > self._first_expiry_seconds)
            except StoreError:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001 - the edge: if it ended, no purge would be heard of
                _log.error("store %s: it looks again after %s", self.shown, type(error).__name__)
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _rest(self) -> None:
        """Until the next look. The first use after a pause ends it. In memory there is only the sweep."""
        if self._folder is None:
            await asyncio.sleep(min(self._sweep_seconds, 1.0))
            return
        used = asyncio.get_running_loop().time() - self._used_at
        if self._waiters or used < _BUSY_SECONDS:
            await asyncio.sleep(_LOOK_SECONDS)
            return
        self._used.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AT_REST_SECONDS):
                await self._used.wait()

    def _has_changed(self) -> bool:
        """On the loop: the number lies in memory that all processes share."""
        connection = self._poll.connection
        if connection is None or not self._database.is_current(self._poll):
            return True
        try:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            self._poll.close()
            return True
        before, self._seen_version = self._seen_version, version
        return bool(before != version)

    async def _look(self) -> None:
        """Raises StoreError."""
        await self._find_position()
        if not self._database.is_current(self._poll):
            await self._follow()
        find = partial(tables.find_announced, after=self._heard, known=self._known, sender=self._sender)
        announced = await self._in_reader(self._reader, find)
        self._heard = announced.newest
        if announced.is_gap:
            self._miss()
        for tag, text in announced.news:
            self._hear(tag, text)
        self._learn(announced.purges)

    async def _follow(self) -> None:
        """To the file that is there now. The writer makes one if there is none."""
        before = self._poll.identity
        self._poll.close()
        await self._change(lambda connection, _: None)
        newest = await self._in_reader(self._poll, tables.find_newest_news)
        if before is not None:
            self._heard = newest
            self._miss()

    async def _in_reader(self, session: Session, call: Callable[[sqlite3.Connection], _Result]) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reading, self._database.read, session, call)

    async def _sweep(self, *, also_records: bool) -> None:
        """Raises StoreError."""
        steps: tuple[Callable[[sqlite3.Connection, Moment], bool], ...] = (
            partial(tables.sweep, also_records=also_records),
            lambda connection, _: tables.give_back(connection),
        )
        for step in steps:
            has_more = await self._change(step)
            while has_more:
                await asyncio.sleep(_STEP_PAUSE_SECONDS)
                has_more = await self._change(step)
        undone = await self._change(lambda connection, moment: tables.find_undone(connection, moment.now))
        for purge in undone:
            await self._remove_buried(purge)
        if undone or self._is_scrub_due:
            await self._scrub()

    async def _scrub(self) -> None:
        """No byte of what is deleted stays in the log, once no other process reads it."""
        for _ in range(_SCRUB_TRIES):
            self._is_scrub_due = not await self._change(lambda connection, _: tables.empty_log(connection))
            if not self._is_scrub_due:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _note_use(self) -> None:
        self._used_at = asyncio.get_running_loop().time()
        self._used.set()

    def _note_replaced(self) -> None:
        """In the writer's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._miss)


def _remove_set_aside(folder: Path) -> None:
    with mapped_errors():
        remove_set_aside(folder)


def _try_to_write(connection: sqlite3.Connection) -> None:
    with transaction(connection, time.monotonic() + LATEST, is_durable=True):
        pass


def read_snapshot(folder: Path, kind: str) -> list[ListedRecord]:
    """All of a kind, of all owners, also while another process uses the folder; changes nothing. Empty if the
    store is absent, damaged or not readable.
    """
    address = f"file:{quote(str(folder / STATE_NAME))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=LATEST)) as connection:
            return tables.list_records(connection, kind, None, None, time.time())
    except sqlite3.Error:
        return []
