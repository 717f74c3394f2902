"""The search index over originals: a cache of the store, so it may be lost, and is made again where it is
missing.

A conversation is indexed from its first search on, or from its first compaction where the policy recalls:
`catch_up` adds what is in the store, behind each list that this process archives, and when it is searched.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from gateway.bounds.background import WorkQueue
from gateway.core.search.ranking import PieceCandidate, choose_pieces
from gateway.core.search.terms import find_terms
from gateway.lru import ENTRY_WEIGHT_BYTES
from gateway.originals.archive import Removals
from gateway.originals.catch_up import CatchUp
from gateway.originals.file_search import (
    Bound,
    FoundRow,
    find_pieces,
    list_mentions,
    make_bound,
    read_message,
)
from gateway.originals.index_files import IndexBounds, IndexDamaged, IndexFiles, is_indexed_name
from gateway.originals.index_writer import Indexed, IndexWriter
from gateway.originals.search import FoundPiece, MentionedFile, OriginalText, Scope, SearchFailed
from gateway.settings import Settings
from gateway.store.address import find_folder
from gateway.store.blobs import Blobs
from gateway.store.stores import SEARCH_NAME

T = TypeVar("T")
# What is asked of one file, for the part of a scope.
AskIndex = Callable[[sqlite3.Connection, Scope, Bound], T | None]

# Names of conversations that wait to be indexed. What finds no room is indexed when it is searched.
_WAITING_BYTES: Final = 1 << 20
# A question that takes longer is given up. It takes some 10 ms.
_QUERY_SECONDS: Final = 1.0
# How many steps of SQLite's lie between two looks at the clock: some milliseconds.
_STEPS: Final = 10_000
_SWEEP_SECONDS: Final = 3_600.0
# Of each conversation, among which the best are chosen, for each piece that is asked for, and at least.
_CANDIDATES: Final = 3
_LEAST_CANDIDATES: Final = 20


class OriginalsIndex:
    """tag: of the tenant (`store.keys.make_tag`); nothing of another one is ever found.

    What is asked raises SearchFailed if nothing is found because something failed, and StoreError as the
    store does. What is added or deleted raises nothing: what fails is logged.
    """

    def __init__(
        self,
        removals: Removals,
        blobs: Blobs,
        files: IndexFiles,
        keep_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """keep_seconds: of those whose list does not say it."""
        self._clock = clock
        self._writer = IndexWriter(files)
        self._catch_up = CatchUp(removals, blobs, self._writer, keep_seconds, clock)
        self._queue: WorkQueue[Indexed] = WorkQueue(self._catch_up.run_to_its_end, _WAITING_BYTES)
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def waiting_bytes(self) -> int:
        """What is queued."""
        return self._queue.waiting_bytes

    def start(self) -> None:
        """From now on, what has expired leaves the files also where nothing is searched."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def finish(self) -> None:
        """Returns once everything that was queued is indexed or deleted."""
        await self._queue.finish()
        await self._catch_up.finish()
        await self._writer.finish()

    async def finish_deleting(self) -> None:
        """Returns once the files of all that was forgotten are gone, or locked by another process: these are
        marked, and tried again. Waits for no other work.
        """
        await self._writer.finish()

    async def close(self) -> None:
        """What waits is given up: the next search reads it from the store."""
        self._writer.is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait((self._sweeper,))
        await self.finish()
        await self._writer.close()

    # What is added.

    def note_kept(self, tag: str, conversation_id: str, may_recall: bool) -> None:
        """This process has put a list into the store. Only queues a job, and only for a conversation that is
        likely to be searched: most never are. may_recall: the policy lets the gateway search it by itself.
        """
        if not self._writer.is_closed and (may_recall or self._writer.files.has_file(tag, conversation_id)):
            self._queue.put((tag, conversation_id), ENTRY_WEIGHT_BYTES)

    # What is asked.

    async def search(
        self, tag: str, scopes: Sequence[Scope], query: str, *, most: int = 5, max_tokens: int = 1_600
    ) -> list[FoundPiece]:
        """The best pieces first, no two that overlap, and together no longer than max_tokens."""
        terms = find_terms(query)
        if terms.is_empty:
            return []
        wanted = max(_LEAST_CANDIDATES, _CANDIDATES * most)
        found: list[tuple[Scope, FoundRow]] = []
        async for scope, rows in self._ask_each(
            tag, scopes, lambda index, at, bound: find_pieces(index, bound, terms, wanted, at.accepts)
        ):
            found += [(scope, row) for row in rows]
        found.sort(key=lambda each: -each[1].score)
        candidates = [_make_candidate(scope, row) for scope, row in found]
        return [_describe(*found[at]) for at in choose_pieces(candidates, most, max_tokens)]

    async def read(
        self, tag: str, scopes: Sequence[Scope], position: int, *, start: int = 0, max_chars: int = 20_000
    ) -> OriginalText | None:
        """None if no original of this position is kept."""
        start = max(0, start)
        async for _, found in self._ask_each(
            tag, scopes, lambda index, at, bound: read_message(index, at.conversation_id, position, bound)
        ):
            return replace(found, text=found.text[start : start + max_chars])
        return None

    async def list_files(self, tag: str, scopes: Sequence[Scope], *, most: int = 200) -> list[MentionedFile]:
        """The most recently mentioned first."""
        files: dict[str, MentionedFile] = {}
        async for _, found in self._ask_each(
            tag, scopes, lambda index, _, bound: list_mentions(index, bound, most)
        ):
            for file in found:
                files.setdefault(file.path, file)
        return list(files.values())[:most]

    async def _ask_each(
        self, tag: str, scopes: Sequence[Scope], ask: AskIndex[T]
    ) -> AsyncIterator[tuple[Scope, T]]:
        """What is found, by scope. Raises SearchFailed at the end if nothing is, and something failed."""
        failed: SearchFailed | None = None
        is_found = False
        for scope in _join_scopes(scopes):
            try:
                answer = await self._ask(tag, scope, ask)
            except SearchFailed as error:
                failed = error
                continue
            if answer:
                is_found = True
                yield scope, answer
        if failed is not None and not is_found:
            raise failed

    async def _ask(self, tag: str, scope: Scope, ask: AskIndex[T]) -> T | None:
        """None if there is nothing to ask. Raises SearchFailed."""
        indexed = tag, scope.conversation_id

        def read() -> T | None:
            with self._writer.files.reading(*indexed) as index:
                if index is None:
                    return None
                ends_at = time.monotonic() + _QUERY_SECONDS
                index.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS)
                return ask(index, scope, make_bound(scope.before, self._clock()))

        if not is_indexed_name(scope.conversation_id):
            return None
        for _ in range(2):
            await self._writer.require_usable()
            has_all = await self._catch_up.run(indexed)
            try:
                answer = await self._writer.read(read)
            except IndexDamaged:
                continue
            if not answer and not has_all:
                raise SearchFailed("not all originals are indexed yet")
            return answer
        raise SearchFailed("the index is damaged, and is made again")

    # What is deleted. The files are gone when `finish_deleting` returns.

    def forget(self, tag: str) -> None:
        """Everything of a tenant."""
        self._writer.delete(self._writer.files.delete_tenant, tag)

    def forget_conversation(self, tag: str, conversation_id: str) -> None:
        self._writer.delete(self._writer.files.delete, tag, conversation_id)

    async def _sweep(self) -> None:
        while True:
            await self._writer.sweep(self._clock())
            await asyncio.sleep(_SWEEP_SECONDS)


def make_index(settings: Settings, removals: Removals, blobs: Blobs) -> OriginalsIndex:
    """Beside a store on disk, otherwise in a private directory."""
    retention, directory = settings.retention, find_folder(settings.store)
    bounds = IndexBounds(total=retention.search_bytes, tenant=max(1, retention.search_bytes // 2))
    files = IndexFiles(directory / SEARCH_NAME if directory is not None else None, bounds)
    return OriginalsIndex(removals, blobs, files, retention.seconds)


def _join_scopes(scopes: Sequence[Scope]) -> Iterator[Scope]:
    """Each conversation once for whoever asks, in order, as far as any of its scopes goes."""
    for asked in dict.fromkeys((scope.conversation_id, scope.accepts) for scope in scopes):
        ends = [scope.before for scope in scopes if (scope.conversation_id, scope.accepts) == asked]
        known = [end for end in ends if end is not None]
        yield Scope(asked[0], max(known) if len(known) == len(ends) else None, asked[1])


def _make_candidate(scope: Scope, row: FoundRow) -> PieceCandidate:
    place = scope.conversation_id, row.position, row.digest
    return PieceCandidate(place, row.start, row.start + len(row.text), row.text)


def _describe(scope: Scope, row: FoundRow) -> FoundPiece:
    return FoundPiece(
        conversation=scope.conversation_id,
        position=row.position,
        role=row.role,
        tool=row.tool,
        path=row.path,
        text=row.text,
        start=row.start,
        end=row.start + len(row.text),
        time_seconds=row.time,
    )
