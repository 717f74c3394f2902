"""Keeps the book in the store: in the background while it changes, and once more at the end.

Where several processes share the store, what is new here is added to the record that is there, under a lease.
A store that cannot be reached costs nothing but time: what is new waits in the book.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from msgspec import structs

from gateway.activity.book import ActivityBook, Entry
from gateway.activity.record import (
    KIND,
    ConversationActivity,
    StoredActivity,
    find_increment,
    merge,
    restore_activity,
    store_activity,
)
from gateway.bounds.background import BackgroundTasks
from gateway.state.records import Kind, Records
from gateway.store.interface import LATEST, HeldLease, Lease, Store, StoreError
from gateway.store.keys import make_tag

# A conversation with a long series is written less often.
_PAUSE_BYTES: Final = 8_192
_MOST_RECORDS: Final = 25
_LEASE_SECONDS: Final = 6.0
# At the end. What has not been written by then is lost.
_LAST_SECONDS: Final = 3.0
# Records that are parsed in one go, well under 10 ms.
_PARSED_RECORDS: Final = 20


class ActivityKeeper:
    """clock: seconds that never go back, and never 0. round_seconds: between two looks for what has changed.
    pause_seconds: between two writes of one conversation.
    """

    def __init__(
        self,
        book: ActivityBook,
        store: Store,
        keep_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        round_seconds: float,
        pause_seconds: float,
    ) -> None:
        self._book = book
        self._round_seconds = round_seconds
        self._pause_seconds = pause_seconds
        self._store = store
        kind = Kind(name=KIND, type=StoredActivity, keep_seconds=keep_seconds)
        self._records = Records(store, kind)
        self._clock = clock
        self.has_restored = False
        self._is_stopping = asyncio.Event()
        self._tasks = BackgroundTasks("activity")
        self._task: asyncio.Task[None] | None = None
        # That made room in the book. The store keeps no more than the books do.
        self._dropped: list[Entry] = []
        book.on_dropped = self._note_dropped
        book.on_deleted = lambda entry: self._records.drop(entry.activity.owner, entry.activity.id)

    def start(self) -> None:
        """Restores what the store has, and then stores what changes, until it is closed."""
        self._task = self._tasks.spawn(self._run())

    async def close(self) -> None:
        """Writes what has not been written yet, for a few seconds at most."""
        self._is_stopping.set()
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                if self._task is not None:
                    await asyncio.wait((self._task,))
                await self.save(self._list_unsaved())
        except TimeoutError:
            if self._task is not None:
                self._task.cancel()

    async def restore(self) -> None:
        """Raises StoreError."""
        found = await self._store.list(KIND)
        activities: list[ConversationActivity] = []
        for place, listed in enumerate(self._records.parse_listed(found)):
            activity = restore_activity(listed.record)
            if activity is not None:
                activities.append(activity)
            if place % _PARSED_RECORDS == 0:
                await asyncio.sleep(0)
        activities.sort(key=lambda activity: activity.seen_seconds)
        self._book.restore(activities)
        self.has_restored = True

    async def save_due(self) -> None:
        """One round: those that have not been written for long enough."""
        await self.save(self._find_due(self._clock()))
        await self._drop()

    async def save(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._book.unsaved.discard(entry.activity.id)
            try:
                await self._save(entry)
            except StoreError:
                # The store has logged it.
                self._book.unsaved.add(entry.activity.id)
            entry.stored_seconds = self._clock()
            await asyncio.sleep(0)

    async def _run(self) -> None:
        while not self._is_stopping.is_set():
            if not self.has_restored:
                # A store that is away is asked again. What is new here is added to what it has then.
                with suppress(StoreError):
                    await self.restore()
            try:
                async with asyncio.timeout(self._round_seconds):
                    await self._is_stopping.wait()
            except TimeoutError:
                await self.save_due()

    def _list_unsaved(self) -> list[Entry]:
        """The newest first."""
        unsaved = self._book.unsaved
        entries = {identity: self._book.find_entry(identity) for identity in unsaved}
        unsaved.difference_update([identity for identity, entry in entries.items() if entry is None])
        found = [entry for entry in entries.values() if entry is not None]
        return sorted(found, key=lambda entry: entry.activity.seen_seconds, reverse=True)

    def _find_due(self, now: float) -> list[Entry]:
        """Those that were written longest ago."""

        def is_due(entry: Entry) -> bool:
            pause_seconds = self._pause_seconds * (1 + entry.activity.series.weight_bytes // _PAUSE_BYTES)
            return not entry.stored_seconds or now >= entry.stored_seconds + pause_seconds

        due = filter(is_due, self._list_unsaved())
        return sorted(due, key=lambda entry: entry.stored_seconds)[:_MOST_RECORDS]

    async def _save(self, entry: Entry) -> None:
        """Raises StoreError."""
        owner, identity = entry.activity.owner, entry.activity.id
        if self.has_restored and not self._store.is_shared:
            self._records.put(owner, identity, store_activity(entry.activity), group=identity)
            entry.note_stored(entry.activity.totals)
            return
        lease = await self._store.claim(make_tag(owner), f"{KIND}.{identity}", ttl=_LEASE_SECONDS)
        if isinstance(lease, HeldLease) or lease.is_alone:
            # Another process writes it now, or the store is away.
            self._book.unsaved.add(identity)
            return
        try:
            await self._add(entry, lease)
        finally:
            self._store.release(lease)

    async def _add(self, entry: Entry, lease: Lease) -> None:
        """Adds what is new to the record in the store. Raises StoreError."""
        owner, identity = entry.activity.owner, entry.activity.id
        found = await self._records.get(owner, identity, wait=LATEST)
        stored = restore_activity(found) if found is not None else None
        own = entry.activity
        before = structs.replace(own.totals)
        if own.totals != entry.stored_totals:
            # Read again after a pause: another process may have added to it by then.
            self._book.unsaved.add(identity)
        merged = own if stored is None else merge(stored, own, find_increment(own, entry.stored_totals))
        written = structs.replace(merged.totals)
        record = store_activity(merged)
        if record != found:
            putting = self._records.put_durable(owner, identity, record, group=identity, lease=lease)
            if await putting is None:
                # The lease was lost.
                self._book.unsaved.add(identity)
                return
        if self._book.find_entry(identity) is not entry:
            # It was deleted meanwhile.
            self._records.drop(owner, identity)
            return
        if stored is not None:
            # What has come while it was written was added to the old one.
            entry.go_on(merge(merged, entry.activity, find_increment(entry.activity, before)))
        entry.note_stored(written)

    async def _drop(self) -> None:
        """Deletes the records of those that made room, unless another process has seen them since."""
        dropped, self._dropped[:] = [*self._dropped], []
        for entry in dropped:
            activity = entry.activity
            if self._book.find_entry(activity.id) is not None:
                continue
            stored = None
            try:
                if self._store.is_shared:
                    stored = await self._records.get(activity.owner, activity.id, wait=LATEST)
            except StoreError:
                # It goes with its time.
                continue
            if stored is None or stored.seen_seconds <= activity.seen_seconds:
                self._records.drop(activity.owner, activity.id)

    def _note_dropped(self, entry: Entry) -> None:
        if entry.is_stored:
            self._dropped.append(entry)
