"""Searching the originals of a conversation: what was summarized or pruned, as it was received.

The archive says which lists a conversation has, and so what may be seen: what it does not list any more is
not found, whatever the index holds. The index is a cache of it. It is filled behind each compaction where the
policy recalls, and by a search that meets lists which it does not have.
"""

import asyncio
import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from gateway.bounds.background import BackgroundTasks, WorkQueue
from gateway.core.search.ranking import PieceCandidate, choose_pieces
from gateway.core.search.terms import find_terms
from gateway.lru import ENTRY_WEIGHT_BYTES
from gateway.originals.archive import Removals, cut_slices, find_list_place, read_packed
from gateway.originals.index import (
    FoundRow,
    IndexBatch,
    IndexBounds,
    IndexedMessage,
    Mention,
    add_batch,
    drop_excess,
    drop_expired,
    drop_owned,
    find_obstacle,
    find_pieces,
    let_words_go,
    list_mentions,
    list_whole,
    needs_rewrite,
    rewrite,
)
from gateway.originals.index_folder import IndexFolder
from gateway.originals.parts import join_texts, read_parts
from gateway.originals.removed import Original, RemovedMessages
from gateway.settings import Settings
from gateway.store.address import find_folder
from gateway.store.blobs import Blobs
from gateway.store.database import Damaged
from gateway.store.interface import StoreError, Unknown
from gateway.store.stores import SEARCH_NAME

T = TypeVar("T")
log = logging.getLogger("gateway.search")

# Names of conversations that wait to be indexed. What finds no room is indexed when it is searched.
_WAITING_BYTES: Final = 1 << 20
# A search waits so long for originals that the index does not have, then it goes without the rest of them.
_FILL_SECONDS: Final = 2.0
# A question that takes longer is given up. It takes some 10 ms.
_QUERY_SECONDS: Final = 1.0
# How many steps of SQLite's lie between two looks at the clock: some milliseconds.
_STEPS: Final = 10_000
_READERS: Final = 2
# A text takes about so many times its bytes in the index.
_INDEX_BYTES: Final = 2
# What could not be deleted is tried again each minute, what has expired is looked for each hour.
_RETRY_SECONDS: Final = 60.0
_RETRIES: Final = 60
# So long the writer leaves the file to other processes between two steps of what leaves it.
_PAUSE_SECONDS: Final = 0.02
# A purge of a tenant waits so long until its words have left the file.
_PURGE_SECONDS: Final = 20.0
# A failure of one kind is logged so often.
_WARNING_SECONDS: Final = 3_600.0
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")

# The tag of a tenant (`store.keys.make_tag`), and the id of a conversation.
Searched = tuple[str, str]
# The lists of conversations, by their names.
RemovedLists = dict[str, RemovedMessages]


class SearchFailed(Exception):
    """The originals could not be searched or read now. The text says why, without a name or a text of any."""


class SearchImpossible(SearchFailed):
    """Trying again is no use: this process cannot search at all."""


class Scope(NamedTuple):
    """Where to look: in the lists of a conversation, or in those of them that are a branch's own.

    accepts: whether the message at a position, with this link (`removed.Original`), is the branch's own. It
    is asked for the last message of each list, because a link stands for all that came before. None if
    whatever has the id may be found.
    """

    conversation_id: str
    accepts: Callable[[int, str], bool] | None = None


class FoundPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an original. position: of its message, after the leading block. start, end: characters of
    its text. time_seconds: when it was taken out of what is sent.
    """

    conversation: str
    position: int
    role: str
    tool: str | None = None
    path: str | None = None
    text: str
    start: int
    end: int
    time_seconds: float


class OriginalText(NamedTuple):
    """The texts of one original, readable. total_chars: of the whole, of which `text` may be a part."""

    position: int
    role: str
    tool: str | None
    path: str | None
    text: str
    total_chars: int


class OriginalsSearch:
    """Nothing of another tenant than that of the tag is ever found.

    What is asked raises SearchFailed if nothing is found because something failed, and StoreError as the
    store does. What is added or deleted raises nothing: what fails is logged.
    """

    def __init__(
        self,
        removals: Removals,
        blobs: Blobs,
        folder: IndexFolder,
        bounds: IndexBounds,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """clock: Unix time."""
        self._removals = removals
        self._blobs = blobs
        self._folder = folder
        self._bounds = bounds
        self._clock = clock
        self._queue: WorkQueue[Searched] = WorkQueue(self._fill_behind, _WAITING_BYTES)
        self._cleaning: WorkQueue[None] = WorkQueue(self._let_words_go, _WAITING_BYTES)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="index-writer")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="index-reader")
        self._filling: dict[Searched, asyncio.Task[bool]] = {}
        self._deleting = BackgroundTasks("deleting from the search index")
        # What could not be deleted. No search sees it: the archive does not list it any more.
        self._left: set[tuple[str, str | None]] = set()
        # Grows when something is forgotten: what was read before that is not written any more.
        self._forgotten = 0
        self._sweeper: asyncio.Task[None] | None = None
        self._is_closed = False
        # Whether this SQLite can search: why it cannot, empty if it can, None until it was tried.
        self._obstacle: str | None = None
        # When each kind of failure was logged last.
        self._warned: dict[str, float] = {}

    @property
    def waiting_bytes(self) -> int:
        """What is queued."""
        return self._queue.waiting_bytes

    def start(self) -> None:
        """From now on, what has expired leaves the file also where nothing is searched."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def finish(self) -> None:
        """Returns once everything that was queued is indexed or deleted."""
        await self._queue.finish()
        while self._filling:
            await asyncio.wait(self._filling.values())
        await self.finish_deleting()
        await self._cleaning.finish()

    async def finish_deleting(self) -> None:
        """Returns once nothing of what was forgotten can be found in the file, or is to be tried again."""
        await self._deleting.finish()

    async def finish_purging(self) -> None:
        """And once no byte of it is in the file; after a while it does not wait for that any more."""
        await self.finish_deleting()
        await self._cleaning.finish(_PURGE_SECONDS)
        with suppress(Damaged):
            try:
                is_left = self._folder.has_file() and await self._run(self._readers, needs_rewrite)
            except SearchFailed:
                is_left = True
            if is_left:
                log.warning("words of a purged tenant are still in the index; they leave in the background")

    async def close(self) -> None:
        """What waits is given up: the next search reads it from the store. Words go after the next start."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait((self._sweeper,))
        await self.finish()
        for threads in (self._writer, self._readers):
            await asyncio.to_thread(threads.shutdown)
        await asyncio.to_thread(self._folder.close)

    # What is asked.

    async def search(
        self, tag: str, scopes: Sequence[Scope], query: str, *, most: int = 5, max_tokens: int = 1_600
    ) -> list[FoundPiece]:
        """The best pieces first, no two that overlap, and together no longer than max_tokens."""
        terms = find_terms(query)
        lists = await self._load_lists(tag, scopes) if terms else {}
        if not lists:
            return []
        ask = partial(find_pieces, tag=tag, list_names=list(lists), terms=terms, most=_QUERY_SECONDS)
        rows = await self._ask(tag, lists, ask)
        candidates = [
            PieceCandidate((row.list_name, row.position), row.start, row.end, row.text) for row in rows
        ]
        chosen = choose_pieces(candidates, most, max_tokens)
        return [_describe(rows[at], lists[rows[at].list_name]) for at in chosen]

    async def list_files(self, tag: str, scopes: Sequence[Scope], *, most: int = 200) -> list[Mention]:
        """The most recently mentioned first."""
        lists = await self._load_lists(tag, scopes)
        if not lists:
            return []
        return await self._ask(tag, lists, lambda index: list_mentions(index, tag, list(lists), most))

    async def read(
        self, tag: str, scopes: Sequence[Scope], position: int, *, start: int = 0, max_chars: int = 20_000
    ) -> OriginalText | None:
        """None if no original of this position is kept. Not from the index: it is in the store as a whole."""
        for name, removed in reversed((await self._load_lists(tag, scopes)).items()):
            at_position = [original for original in removed.originals if original.position == position]
            for message in await self._read_originals(tag, name, removed, at_position):
                return _read_text(message, max(0, start), max_chars)
        return None

    async def has_originals(self, tag: str, conversation_id: str) -> bool:
        return bool(await self._load_lists(tag, [Scope(conversation_id)]))

    async def _load_lists(self, tag: str, scopes: Sequence[Scope]) -> RemovedLists:
        """What may be seen, the oldest first. Raises StoreError."""
        found: list[tuple[str, RemovedMessages]] = []
        for scope in scopes:
            # What a model or a client names may be anything.
            if _ID.fullmatch(scope.conversation_id):
                loaded = await self._removals.load(tag, scope.conversation_id)
                listed = [(each.name, each.record) for each in loaded]
                found += await asyncio.to_thread(_list_own, listed, scope.accepts)
        now = self._clock()
        live = {name: removed for name, removed in found if self._removals.find_expiry(removed) > now}
        return dict(sorted(live.items(), key=lambda each: find_list_place(each[0])))

    async def _ask(
        self, tag: str, lists: RemovedLists, ask: Callable[[sqlite3.Connection], list[T]]
    ) -> list[T]:
        """Raises SearchFailed."""

        def read(index: sqlite3.Connection) -> list[T]:
            ends_at = time.monotonic() + _QUERY_SECONDS
            index.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS)
            # All of it is answered from one state of the file.
            index.execute("BEGIN")
            return ask(index)

        await self._require_usable()
        for _ in range(2):
            has_all = await self._fill_for_search(tag, lists)
            try:
                answer = await self._run(self._readers, read)
            except Damaged:
                continue
            if not answer and not has_all:
                raise SearchFailed("not all originals are indexed yet")
            return answer
        raise SearchFailed("the index is damaged, and is made again")

    async def _require_usable(self) -> None:
        """Raises SearchFailed."""
        if self._obstacle is None:
            self._obstacle = await asyncio.to_thread(find_obstacle) or ""
            if self._obstacle:
                self._warn(self._obstacle)
        if self._obstacle:
            raise SearchImpossible(self._obstacle)

    # What is added.

    def note_kept(self, tag: str, conversation_id: str, may_recall: bool) -> None:
        """This process has put a list into the store. Only queues a job, and only for a conversation that the
        gateway may search by itself (may_recall): most are never searched.
        """
        if may_recall and not self._is_closed:
            self._queue.put((tag, conversation_id), ENTRY_WEIGHT_BYTES)

    async def _fill_behind(self, place: Searched) -> None:
        """However long it takes. What fails is left to the next search."""
        tag, conversation_id = place
        with suppress(SearchFailed, StoreError):
            await self._require_usable()
            await self._fill(place, await self._load_lists(tag, [Scope(conversation_id)]))

    async def _fill_for_search(self, tag: str, lists: RemovedLists) -> bool:
        """True when the index has everything, False if it lacks something after a while, or because something
        failed. What takes longer goes on.
        """
        place = tag, next(iter(lists)).rpartition("/")[0]
        try:
            async with asyncio.timeout(_FILL_SECONDS):
                return await self._fill(place, lists)
        except TimeoutError:
            return False

    async def _fill(self, place: Searched, lists: RemovedLists) -> bool:
        """place: one task at a time fills in what it lacks. Raises SearchFailed."""
        while (running := self._filling.get(place)) is not None:
            await asyncio.wait((running,))
        missing = await self._find_missing(place[0], lists)
        if not missing:
            return True
        task = asyncio.get_running_loop().create_task(self._add_lists(place[0], missing))
        self._filling[place] = task
        task.add_done_callback(partial(self._end_filling, place))
        return await asyncio.shield(task)

    def _end_filling(self, place: Searched, task: "asyncio.Task[bool]") -> None:
        if self._filling.get(place) is task:
            del self._filling[place]

    async def _find_missing(self, tag: str, lists: RemovedLists) -> RemovedLists:
        """The newest of the lists, as far as the index has room for them, without those that it has."""
        wanted, left_bytes = dict[str, RemovedMessages](), self._bounds.tenant
        for name, removed in reversed(lists.items()):
            left_bytes -= _INDEX_BYTES * sum(original.size_bytes for original in removed.originals)
            if left_bytes < 0:
                break
            if removed.originals:
                wanted[name] = removed
        known = set[str]()
        with suppress(Damaged):
            known = await self._run(self._readers, lambda index: list_whole(index, tag, list(wanted)))
        return {name: removed for name, removed in wanted.items() if name not in known}

    async def _add_lists(self, tag: str, lists: RemovedLists) -> bool:
        """False if something could not be read or written, or if something has been forgotten meanwhile."""
        try:
            for name, removed in lists.items():
                if not await self._add_list(tag, name, removed):
                    return False
            await self._run(self._writer, partial(drop_excess, bounds=self._bounds))
        except (SearchFailed, StoreError):
            return False
        self._cleaning.put(None, ENTRY_WEIGHT_BYTES)
        return True

    async def _add_list(self, tag: str, name: str, removed: RemovedMessages) -> bool:
        """Raises SearchFailed, StoreError and Damaged."""
        expires = self._removals.find_expiry(removed)
        cut = list(cut_slices(removed.originals, lambda original: original.size_bytes))
        for number, some in enumerate(cut):
            # What is deleted leaves the store first, so what is read afterwards lacks it.
            forgotten = self._forgotten
            messages = await self._read_originals(tag, name, removed, some)
            if forgotten != self._forgotten or self._is_closed:
                return False
            batch = IndexBatch(tag, name, number, len(cut), expires, messages)
            await self._run(self._writer, partial(add_batch, batch=batch))
        return True

    async def _read_originals(
        self, tag: str, name: str, removed: RemovedMessages, some: Sequence[Original]
    ) -> list[IndexedMessage]:
        """Messages of a list. What has left the store, or is damaged, is left out. Raises StoreError."""
        if not some:
            return []
        packed = await self._blobs.get(tag, name.rpartition("/")[0], [each.digest for each in some])

        def read() -> Iterator[IndexedMessage]:
            for original in some:
                raw = read_packed(packed, removed.owner, original.digest)
                if raw is not None:
                    parts = read_parts(removed.format, raw, original.origins)
                    yield IndexedMessage(original.position, parts)

        return await asyncio.to_thread(lambda: list(read()))

    # What is deleted. Its words leave the file afterwards.

    def forget(self, tag: str, conversation_id: str | None = None) -> None:
        """Everything of a tenant, or of a conversation, which have left the store."""
        self._forgotten += 1
        if not self._is_closed:
            self._deleting.spawn(self._delete(tag, conversation_id))

    async def _delete(self, tag: str, conversation_id: str | None) -> None:
        owned = tag, conversation_id
        if await self._drop(partial(drop_owned, tag=tag, conversation_id=conversation_id)):
            self._left.discard(owned)
        elif owned not in self._left:
            self._left.add(owned)
            log.warning("words could not be deleted from the index yet; they are not found, and tried again")

    async def _drop(self, drop: Callable[[sqlite3.Connection], None]) -> bool:
        """False if it failed. A file that is damaged is gone as a whole."""
        if not self._folder.has_file():
            return True
        try:
            with suppress(Damaged):
                await self._run(self._writer, drop)
        except SearchFailed:
            return False
        self._cleaning.put(None, ENTRY_WEIGHT_BYTES)
        return True

    async def _let_words_go(self, _: None) -> None:
        """Between two steps other work of the thread goes first. What fails is tried again."""
        with suppress(Damaged, SearchFailed):
            while not self._is_closed and self._folder.has_file():
                if not await self._run(self._writer, let_words_go):
                    await self._run(self._writer, rewrite)
                    return
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _sweep(self) -> None:
        while True:
            await self._drop(partial(drop_expired, now=self._clock()))
            for _ in range(_RETRIES):
                await asyncio.sleep(_RETRY_SECONDS)
                for owned in list(self._left):
                    await self._delete(*owned)
                self._cleaning.put(None, ENTRY_WEIGHT_BYTES)

    async def _run(self, threads: ThreadPoolExecutor, call: Callable[[sqlite3.Connection], T]) -> T:
        """In a thread. Raises Damaged, and SearchFailed if the disk fails, or SQLite."""
        if self._is_closed and threads is self._readers:
            raise SearchFailed("the gateway stops")
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, self._folder.run, call)
        except (sqlite3.Error, OSError, Unknown) as error:
            why = _say(error)
            self._warn(why)
            raise SearchFailed(why) from error

    def _warn(self, why: str) -> None:
        now, last = time.monotonic(), self._warned.get(why)
        if last is None or now - last > _WARNING_SECONDS:
            self._warned[why] = now
            log.warning("originals cannot be searched: %s; this is not logged again for an hour", why)


def make_search(settings: Settings, removals: Removals, blobs: Blobs) -> OriginalsSearch:
    """Beside a store on disk, otherwise in a private folder."""
    most_bytes, folder = settings.retention.search_bytes, find_folder(settings.store)
    bounds = IndexBounds(total=most_bytes, tenant=max(1, most_bytes // 2))
    place = IndexFolder(folder / SEARCH_NAME if folder is not None else None)
    return OriginalsSearch(removals, blobs, place, bounds)


def _list_own(
    listed: Sequence[tuple[str, RemovedMessages]], accepts: Callable[[int, str], bool] | None
) -> list[tuple[str, RemovedMessages]]:
    """The lists that are accepted, and those that they build on.

    A client that has dropped or cleared old messages no longer tells their links, but that of its pivot, or
    of a later message. A list without a link may be another history's.
    """
    if accepts is None:
        return list(listed)
    own, before = list[tuple[str, RemovedMessages]](), set[str]()
    for name, removed in sorted(listed, key=lambda each: -_find_last(each[1]).position):
        last = _find_last(removed)
        if last.link and (last.link in before or accepts(last.position, last.link)):
            own.append((name, removed))
            before.update(original.link_before for original in removed.originals)
    return own


def _find_last(removed: RemovedMessages) -> Original:
    return removed.originals[-1] if removed.originals else Original(0, 0, "")


def _read_text(message: IndexedMessage, start: int, max_chars: int) -> OriginalText:
    parts = message.parts
    text = join_texts(parts)
    return OriginalText(
        position=message.position,
        role=parts[0].role if parts else "",
        tool=next((part.tool for part in parts if part.tool), None),
        path=next((part.path for part in parts if part.path), None),
        text=text[start : start + max_chars],
        total_chars=len(text),
    )


def _describe(row: FoundRow, removed: RemovedMessages) -> FoundPiece:
    return FoundPiece(
        conversation=row.list_name.rpartition("/")[0],
        position=row.position,
        role=row.role,
        tool=row.tool,
        path=row.path,
        text=row.text,
        start=row.start,
        end=row.end,
        time_seconds=removed.created_seconds,
    )


def _say(error: sqlite3.Error | OSError | Unknown) -> str:
    """One of few texts, without a path or anything of a query."""
    if isinstance(error, Unknown):
        return "another process holds the lock of the search index"
    if isinstance(error, TimeoutError) or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
        return "the query took too long"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return getattr(error, "sqlite_errorname", type(error).__name__)
