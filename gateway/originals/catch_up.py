"""Indexes what the index of a conversation lacks: lists that this or another process has put into the store,
or all of them where the file was lost.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from gateway.originals.archive import Removals, find_list_place, unpack
from gateway.originals.index_file import IndexedMessage, find_lists
from gateway.originals.index_files import IndexDamaged
from gateway.originals.index_writer import Indexed, IndexWriter
from gateway.originals.parts import read_parts
from gateway.originals.removed import Original, RemovedMessages, fingerprint
from gateway.originals.search import SearchFailed
from gateway.store.blobs import Blobs
from gateway.store.interface import StoreError

M = TypeVar("M")

log = logging.getLogger("gateway.search")

# A search waits so long for originals that the index does not have, then it goes without the rest of them.
_LONGEST_SECONDS: Final = 2.0
# What is added at once, in some 100 ms, while a search of the same conversation waits.
_BATCH_BYTES: Final = 512 << 10
_BATCH_MESSAGES: Final = 512


class _Stay(NamedTuple):
    """How long messages are in the index, in Unix time."""

    time: float
    expires: float


class CatchUp:
    """keep_seconds: of those whose list does not say it. clock: Unix time."""

    def __init__(
        self,
        removals: Removals,
        blobs: Blobs,
        writer: IndexWriter,
        keep_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._removals = removals
        self._blobs = blobs
        self._writer = writer
        self._keep_seconds = keep_seconds
        self._clock = clock
        # The newest of each conversation, and those of them that have not begun to read.
        self._tasks: dict[Indexed, asyncio.Task[bool]] = {}
        self._unbegun: dict[Indexed, asyncio.Task[bool]] = {}

    async def run(self, indexed: Indexed) -> bool:
        """True when the index has everything, False if it lacks something after a while, or because something
        failed. What takes longer goes on.
        """
        task = self._start(indexed)
        await asyncio.wait((task,), timeout=_LONGEST_SECONDS)
        return task.done() and not task.cancelled() and task.exception() is None and task.result()

    async def run_to_its_end(self, indexed: Indexed) -> None:
        """However long it takes. What fails is left to the next search."""
        await asyncio.wait((self._start(indexed),))

    def _start(self, indexed: Indexed) -> "asyncio.Task[bool]":
        """Behind the one under way, which may have read the lists before the newest was written."""
        task = self._unbegun.get(indexed)
        if task is None:
            work = self._read_lists(indexed, self._tasks.get(indexed))
            task = asyncio.get_running_loop().create_task(work)
            self._tasks[indexed] = self._unbegun[indexed] = task
            task.add_done_callback(partial(self._end, indexed))
        return task

    async def finish(self) -> None:
        """Returns once nothing goes on."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def _end(self, indexed: Indexed, task: "asyncio.Task[bool]") -> None:
        if self._tasks.get(indexed) is task:
            del self._tasks[indexed]
        error = None if task.cancelled() else task.exception()
        # Another failure was logged where it happened.
        if error is not None and not isinstance(error, SearchFailed | StoreError):
            log.error("originals cannot be indexed: %s", type(error).__name__, exc_info=error)

    async def _read_lists(self, indexed: Indexed, before: "asyncio.Task[bool] | None") -> bool:
        """False if the index lacks something. Raises SearchFailed, and StoreError."""
        if before is not None:
            await asyncio.wait((before,))
        del self._unbegun[indexed]
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
        # With those that the index has: this list may keep them for longer.
        for some in cut_batches(wanted, lambda original: original.size_bytes):
            packed = await self._blobs.get(*indexed, [each.digest for each in some])
            read = partial(_read_packed, packed, removed, some, stay)
            if not await self._writer.write(indexed, forgotten, read):
                return False
        return await self._writer.write(indexed, forgotten, list, list_place)

    def _find_stay(self, removed: RemovedMessages) -> _Stay:
        kept = self._keep_seconds if removed.keep_seconds is None else removed.keep_seconds
        return _Stay(removed.created_seconds, removed.created_seconds + kept)

    def _find_known(self, indexed: Indexed) -> set[str]:
        """The places of the lists that the index has."""
        try:
            with self._writer.files.reading(*indexed) as index:
                return find_lists(index) if index is not None else set()
        except IndexDamaged:
            return set()


def cut_batches(messages: Sequence[M], measure: Callable[[M], int]) -> Iterator[list[M]]:
    """measure: the bytes of a message. One message may be larger than a batch."""
    batch: list[M] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += measure(message)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_MESSAGES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_packed(
    packed: Mapping[str, bytes], removed: RemovedMessages, some: Sequence[Original], stay: _Stay
) -> list[IndexedMessage]:
    """Some messages of a list. packed: as the store has them, by their digests. What is absent or damaged is
    left out.
    """
    messages = []
    for original in some:
        raw = unpack(packed.get(original.digest, b""))
        if raw is not None and fingerprint(removed.owner, raw) == original.digest:
            parts = read_parts(removed.format, raw, original.origins)
            place, links = (original.position, original.digest), (original.link, original.link_before)
            messages.append(IndexedMessage(*place, stay.time, stay.expires, parts, *links))
    return messages
