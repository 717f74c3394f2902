"""Indexes what the index of a conversation lacks: lists that other processes wrote, or earlier versions, or
all of them where the file was lost.

A record for each conversation names the list that was written last. Where that is known, and the file is the
same as then, nothing is new, and one read of the store has told so.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.originals.archive import find_list_place, make_list_prefix, make_newest_key, read_lists
from gateway.originals.batches import Stay, cut_batches, read_packed
from gateway.originals.index_file import find_lists, find_missing
from gateway.originals.index_files import IndexDamaged
from gateway.originals.index_writer import Indexed, IndexWriter
from gateway.originals.removed import Original, RemovedMessages
from gateway.originals.search import SearchFailed
from gateway.store import Store
from gateway.store.keys import make_key

log = logging.getLogger("gateway.search")

# A search waits so long for originals that the index does not have, then it goes without the rest of them.
_LONGEST_SECONDS: Final = 2.0
# What is known of the lists of some thousand conversations.
_SEEN_BYTES: Final = 1 << 20
_SEEN_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 250


class _Seen(msgspec.Struct, frozen=True):
    """newest: the place of the list written last, when the index had all. identity: of the file then."""

    newest: bytes
    identity: int


class CatchUp:
    """find_stay: of the messages of a list. clock: Unix time."""

    def __init__(
        self,
        store: Store,
        writer: IndexWriter,
        find_stay: Callable[[RemovedMessages], Stay],
        clock: Callable[[], float],
    ) -> None:
        """store: that of the originals."""
        self._store = store
        self._writer = writer
        self._find_stay = find_stay
        self._clock = clock
        self._seen: Lru[Indexed, _Seen] = Lru(_SEEN_BYTES)
        self._tasks: dict[Indexed, asyncio.Task[bool]] = {}

    async def run(self, indexed: Indexed) -> bool:
        """True when the index has everything, False if it lacks something after a while, or because something
        failed. What takes longer goes on.
        """
        task = self._tasks.get(indexed)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._read_lists(indexed))
            self._tasks[indexed] = task
            task.add_done_callback(partial(self._end, indexed))
        await asyncio.wait((task,), timeout=_LONGEST_SECONDS)
        return task.done() and not task.cancelled() and task.exception() is None and task.result()

    async def finish(self) -> None:
        """Returns once nothing goes on."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def forget(self, indexed: Indexed) -> None:
        self._seen.pop(indexed)

    def clear(self) -> None:
        self._seen.clear()

    def _end(self, indexed: Indexed, task: "asyncio.Task[bool]") -> None:
        self._tasks.pop(indexed, None)
        error = None if task.cancelled() else task.exception()
        # Another failure was logged where it happened.
        if error is not None and not isinstance(error, SearchFailed):
            log.error("originals cannot be indexed: %s", type(error).__name__, exc_info=error)

    async def _read_lists(self, indexed: Indexed) -> bool:
        """False if the index lacks something. Raises SearchFailed."""
        forgotten, files = self._writer.forgotten, self._writer.files
        newest = await self._store.read(make_newest_key(*indexed)) or b""
        if self._seen.get(indexed) == _Seen(newest, files.find_identity(*indexed)):
            return True
        found = await self._store.scan(make_list_prefix(*indexed))
        known = await self._writer.read(partial(self._find_known, indexed))
        found = [each for each in found if find_list_place(each[0]) not in known]
        for list_place, removed in await asyncio.to_thread(_parse_lists, found):
            if not await self._index(indexed, forgotten, list_place, removed):
                return False
        if found:
            await self._writer.trim(indexed)
        if forgotten == self._writer.forgotten:
            seen = _Seen(newest, files.find_identity(*indexed))
            self._seen.put(indexed, seen, _SEEN_WEIGHT_BYTES)
        return True

    async def _index(
        self, indexed: Indexed, forgotten: int, list_place: str, removed: RemovedMessages
    ) -> bool:
        """False if it could not be written. Originals that have left the store are left out."""
        stay = self._find_stay(removed)
        wanted = removed.originals if stay.expires > self._clock() else ()
        missing = await self._writer.read(partial(self._find_missing, indexed, wanted))
        for some in cut_batches(missing, _measure):
            keys = [make_key(indexed[0], "original", each.digest) for each in some]
            stored = await self._store.read_groups([(key,) for key in keys])
            packed = {
                each.digest: record[1]
                for each, record in zip(some, stored, strict=True)
                if record is not None
            }
            read = partial(read_packed, packed, removed, some, stay)
            if not await self._writer.write(indexed, forgotten, read):
                return False
        return await self._writer.write(indexed, forgotten, list, list_place)

    def _find_known(self, indexed: Indexed) -> set[str]:
        """The places of the lists that the index has."""
        try:
            with self._writer.files.reading(*indexed) as index:
                return find_lists(index) if index is not None else set()
        except IndexDamaged:
            return set()

    def _find_missing(self, indexed: Indexed, wanted: Sequence[Original]) -> Sequence[Original]:
        try:
            with self._writer.files.reading(*indexed) as index:
                if index is None:
                    return wanted
                missing = find_missing(index, map(_name, wanted))
        except IndexDamaged:
            return wanted
        return [each for each in wanted if _name(each) in missing]


def _name(original: Original) -> tuple[int, str, str]:
    return original.position, original.digest, original.link


def _parse_lists(found: Sequence[tuple[str, bytes]]) -> list[tuple[str, RemovedMessages]]:
    """The oldest first, each with its place."""
    lists = [(find_list_place(found[at][0]), removed) for at, removed in read_lists(found)]
    return lists[::-1]


def _measure(original: Original) -> int:
    return original.size_bytes
