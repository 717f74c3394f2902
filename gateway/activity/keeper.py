"""Keeps the book in the store: in the background while it changes, and once more at the end.

Where several processes share the store, what is new here is added to the record that is there, under a lease.
A store that cannot be reached costs nothing but time: what is new waits in the book.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import structs

from gateway.activity.book import ActivityBook
from gateway.activity.entry import Entry
from gateway.activity.increments import find_increment, merge
from gateway.activity.record import ConversationActivity
from gateway.activity.stored import KIND, name_record, parse_activity, render_activity
from gateway.store import Store, StoreError
from gateway.store.keys import make_key, make_tag
from gateway.store.leases import Held, Lease

log = logging.getLogger("gateway.activity")

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
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._has_restored = False
        self._is_stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # That made room in the book. The store keeps no more than the books do.
        self._dropped: list[Entry] = []
        book.on_dropped = self._note_dropped
        book.on_deleted = self._delete

    def start(self) -> None:
        """Restores what the store has, and then stores what changes, until it is closed."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="activity")
        self._task.add_done_callback(_log_failure)

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
        found = await self._store.scan(f"{KIND}:")
        activities: list[ConversationActivity] = []
        for place, (key, data) in enumerate(found):
            activity = parse_activity(key, data)
            if activity is not None:
                activities.append(activity)
            if place % _PARSED_RECORDS == 0:
                await asyncio.sleep(0)
        activities.sort(key=lambda activity: activity.seen_seconds)
        self._book.restore(activities)
        self._has_restored = True

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
        await self.restore()
        while not self._is_stopping.is_set():
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
        due = [
            entry
            for entry in self._list_unsaved()
            if not entry.stored_seconds or now >= entry.stored_seconds + self._choose_pause(entry)
        ]
        return sorted(due, key=lambda entry: entry.stored_seconds)[:_MOST_RECORDS]

    def _choose_pause(self, entry: Entry) -> float:
        return self._pause_seconds * (1 + entry.activity.series.weight_bytes // _PAUSE_BYTES)

    async def _save(self, entry: Entry) -> None:
        """Raises StoreError."""
        if self._has_restored and not self._store.is_shared:
            activity = entry.activity
            name = name_record(activity.owner, activity.id)
            self._store.write(name, render_activity(activity), keep_seconds=self._keep_seconds)
            entry.note_stored(activity.totals)
            return
        owner, identity = entry.activity.owner, entry.activity.id
        lease = await self._store.leases.claim(
            make_key(make_tag(owner), "lease", f"{KIND}.{identity}"), (), keep_seconds=_LEASE_SECONDS
        )
        if isinstance(lease, Held) or lease.fence == 0:
            # Another process writes it now, or the store is away.
            self._book.unsaved.add(identity)
            return
        try:
            await self._add(entry, lease)
        finally:
            await self._store.leases.release(lease)

    async def _add(self, entry: Entry, lease: Lease) -> None:
        """Adds what is new to the record in the store. Raises StoreError."""
        owner, identity = entry.activity.owner, entry.activity.id
        name = name_record(owner, identity)
        data = await self._store.read(name)
        stored = parse_activity(name, data) if data is not None else None
        own = entry.activity
        before = structs.replace(own.totals)
        if own.totals != entry.stored_totals:
            # Read again after a pause: another process may have added to it by then.
            self._book.unsaved.add(identity)
        merged = own if stored is None else merge(stored, own, find_increment(own, entry.stored_totals))
        written = structs.replace(merged.totals)
        rendered = render_activity(merged)
        if rendered != data and not await self._store.leases.write(
            lease, name, rendered, keep_seconds=self._keep_seconds
        ):
            self._book.unsaved.add(identity)
            return
        if self._book.find_entry(identity) is not entry:
            # It was deleted meanwhile.
            self._store.delete(name)
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
            name = name_record(activity.owner, activity.id)
            if self._book.find_entry(activity.id) is not None:
                continue
            data = await self._store.read(name) if self._store.is_shared else None
            stored = parse_activity(name, data) if data is not None else None
            if stored is None or stored.seen_seconds <= activity.seen_seconds:
                self._store.delete(name)

    def _note_dropped(self, entry: Entry) -> None:
        if entry.is_stored:
            self._dropped.append(entry)

    def _delete(self, entry: Entry) -> None:
        activity = entry.activity
        self._store.delete(name_record(activity.owner, activity.id))


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        error = task.exception()
        log.error("background job failed: %s", type(error).__name__, exc_info=error)
