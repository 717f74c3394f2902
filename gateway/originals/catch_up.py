"""Indexes what the index of a conversation lacks: lists that other processes wrote, or all of them where the
file was lost.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from gateway.originals.archive import Removals, find_list_place
from gateway.originals.batches import Stay, cut_batches, read_packed
from gateway.originals.index_file import find_lists, find_missing
from gateway.originals.index_files import IndexDamaged
from gateway.originals.index_writer import Indexed, IndexWriter
from gateway.originals.removed import Original, RemovedMessages
from gateway.originals.search import SearchFailed
from gateway.store.blobs import Blobs
from gateway.store.interface import StoreError

log = logging.getLogger("gateway.search")

# A search waits so long for originals that the index does not have, then it goes without the rest of them.
_LONGEST_SECONDS: Final = 2.0


class CatchUp:
    """find_stay: of the messages of a list. clock: Unix time."""

    def __init__(
        self,
        removals: Removals,
        blobs: Blobs,
        writer: IndexWriter,
        find_stay: Callable[[RemovedMessages], Stay],
        clock: Callable[[], float],
    ) -> None:
        self._removals = removals
        self._blobs = blobs
        self._writer = writer
        self._find_stay = find_stay
        self._clock = clock
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

    def _end(self, indexed: Indexed, task: "asyncio.Task[bool]") -> None:
        self._tasks.pop(indexed, None)
        error = None if task.cancelled() else task.exception()
        # Another failure was logged where it happened.
        if error is not None and not isinstance(error, SearchFailed | StoreError):
            log.error("originals cannot be indexed: %s", type(error).__name__, exc_info=error)

    async def _read_lists(self, indexed: Indexed) -> bool:
        """False if the index lacks something. Raises SearchFailed, and StoreError."""
        forgotten = self._writer.forgotten
        known = await self._writer.read(partial(self._find_known, indexed))
        lists = await self._removals.load(*indexed, known)
        for each in lists:
            if not await self._index(indexed, forgotten, find_list_place(each.name), each.record):
                return False
        if lists:
            await self._writer.trim(indexed)
        return True

    async def _index(
        self, indexed: Indexed, forgotten: int, list_place: str, removed: RemovedMessages
    ) -> bool:
        """False if it could not be written. Originals that have left the store are left out."""
        stay = self._find_stay(removed)
        wanted = removed.originals if stay.expires > self._clock() else ()
        missing = await self._writer.read(partial(self._find_missing, indexed, wanted))
        for some in cut_batches(missing, _measure):
            packed = await self._blobs.get(*indexed, [each.digest for each in some])
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


def _measure(original: Original) -> int:
    return original.size_bytes
