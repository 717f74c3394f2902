"""The archive of original messages that compaction or pruning removed from what is sent, for operators to
read.

A list names the messages that were removed together; it holds none of their text. The messages are kept as
they were received, compressed, under a fingerprint.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from gateway.bounds.work_queue import WorkQueue
from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.history.pivot import Batch, Pivot, is_on_chain
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.originals.origins import OriginFinder
from gateway.originals.removed import (
    Original,
    RemovalKind,
    RemovedMessages,
    fingerprint,
    parse_removed,
    render_removed,
)
from gateway.store import Store, StoreError
from gateway.store.keys import make_key, make_tag

log = logging.getLogger("gateway.archive")

# Bodies that wait to be archived; the cache of recognized bodies is as large.
_WAITING_BYTES: Final = 64 << 20
# A body is archived in slices: one is compressed in some 20 ms outside the event loop, and committed at once.
_SLICE_BYTES: Final = 1 << 20
_SLICE_MESSAGES: Final = 128
_KEPT_BYTES: Final = 1 << 18
_KEPT_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 350
_DAY_SECONDS: Final = 86_400


class Listing(msgspec.Struct, frozen=True):
    """left_off: the number of further lists. last: the place of the last list, behind which they are."""

    lists: list[RemovedMessages]
    left_off: int
    last: str


class _KeptRange(msgspec.Struct, frozen=True):
    """The messages of a conversation from `first` to `covers` are archived. key: the chain at `covers`."""

    key: str
    covers: int
    first: int


class _Job(msgspec.Struct, frozen=True):
    received: Received
    conversation_id: str
    kind: RemovalKind
    positions: Sequence[int]
    keep_seconds: float
    may_recall: bool
    weight_bytes: int
    # What a compaction built on.
    base: Pivot | None


class KeptList(msgspec.Struct, frozen=True, kw_only=True):
    """A list that is now in the store. place: see `find_list_place`. received: what its messages are from.

    may_recall: the policy lets the gateway search them by itself.
    """

    conversation_id: str
    place: str
    removed: RemovedMessages
    received: Received
    may_recall: bool
    weight_bytes: int


class OriginalsArchive:
    """keep_seconds: unless the policy says otherwise. note_kept: hears of each list that was written."""

    def __init__(
        self, store: Store, keep_seconds: float, note_kept: Callable[[KeptList], None] | None = None
    ) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._note_kept = note_kept
        self._queue = WorkQueue(self._keep, _WAITING_BYTES)
        self._kept: Lru[str, _KeptRange] = Lru(_KEPT_BYTES)
        self._has_warned = False

    @property
    def waiting_bytes(self) -> int:
        """What is queued."""
        return self._queue.waiting_bytes

    async def finish(self) -> None:
        """Returns once everything that was queued is archived."""
        await self._queue.finish()

    def forget_conversation(self, conversation_id: str) -> None:
        """What it had archived is archived again if it is removed again."""
        self._kept.pop(conversation_id)

    # Archiving. These calls only queue a job.

    def keep_compacted(self, turn: Turn, cut: Cut, pivot: Pivot) -> None:
        """The messages that a durable pivot replaces. The first time in a conversation these are all that it
        covers, because a fork, or a process after a restart, builds on earlier compactions.
        """
        first = 0 if pivot.opening_chars is not None else pivot.opening_end
        kept = self._kept.get(turn.conversation_id)
        is_known = kept is not None and kept.first <= first
        if kept is not None and is_known and is_on_chain(turn.received.conversation, kept.key, kept.covers):
            start = min(cut.start, kept.covers)
        else:
            start = first
        kind: RemovalKind = "digest" if pivot.is_digest else "summary"
        if self._enqueue(turn, kind, range(start, pivot.covers), cut.base):
            now_kept = _KeptRange(pivot.key, pivot.covers, first)
            self._kept.put(turn.conversation_id, now_kept, _KEPT_WEIGHT_BYTES)

    def keep_pruned(self, turn: Turn, batch: Batch) -> None:
        """The messages that a batch marks."""
        self._enqueue(turn, "cut" if batch.is_cut else "prune", [mark.position for mark in batch.marks])

    def _enqueue(
        self, turn: Turn, kind: RemovalKind, positions: Sequence[int], base: Pivot | None = None
    ) -> bool:
        seconds = find_keep_seconds(turn, self._keep_seconds)
        if seconds is None:
            return False
        conversation = turn.received.conversation
        positions = [position for position in positions if not conversation.is_gone(position)]
        job = _Job(
            turn.received,
            turn.conversation_id,
            kind,
            positions,
            seconds,
            turn.policy.recall != "off",
            turn.weight_bytes,
            base,
        )
        if self._queue.put(job, turn.weight_bytes):
            return True
        self._warn("too much is waiting to be archived")
        return False

    # Reading. What is absent, expired or damaged is left out, or None.

    async def load_lists(
        self, tag: str, conversation_id: str, max_messages: int, behind: str | None = None
    ) -> Listing:
        """The newest list first, and that one in any case; the others as long as they hold no more than
        max_messages together. tag: of the owner, see `store.keys`. behind: the last place of another listing.
        """
        found = await self._store.scan(make_list_prefix(tag, conversation_id))
        if behind is not None:
            found = [each for each in found if find_list_place(each[0]) < behind]
        return await asyncio.to_thread(_choose_newest, found, max_messages)

    async def load(self, tag: str, conversation_id: str, digest: str) -> bytes | None:
        """An original of this conversation; those of other conversations are not returned."""
        found = await self._store.scan(make_list_prefix(tag, conversation_id))
        owner = await asyncio.to_thread(_find_owner, found, digest)
        if owner is None:
            return None
        data = await self._store.read(make_key(tag, "original", digest))
        raw = await asyncio.to_thread(unpack, data) if data is not None else None
        return raw if raw is not None and fingerprint(owner, raw) == digest else None

    # The background job.

    async def _keep(self, job: _Job) -> None:
        """The list is written last, so the messages that it names exist."""
        owner, originals = job.received.owner, []
        tag, finder = make_tag(owner), OriginFinder(job.received)
        try:
            for positions in _slices(job):
                some = await asyncio.to_thread(_pack_some, job, finder, positions)
                records = {make_key(tag, "original", each.digest): data for each, data in some}
                await self._write(records, job.keep_seconds)
                originals += [each for each, _ in some]
            await self._write_list(tag, job, originals)
        except StoreError:
            self._warn("the store cannot be written")

    async def _write_list(self, tag: str, job: _Job, originals: Sequence[Original]) -> None:
        """And behind it its place. Raises StoreError."""
        now_ns = time.time_ns()
        removed = RemovedMessages(
            owner=job.received.owner,
            created_seconds=now_ns / 1e9,
            kind=job.kind,
            originals=originals,
            format=job.received.format.name,
            keep_seconds=job.keep_seconds,
        )
        data = await asyncio.to_thread(lambda: zlib.compress(render_removed(removed)))
        place = f"{now_ns:016x}"
        key = f"{make_list_prefix(tag, job.conversation_id)}{place}"
        newest = make_newest_key(tag, job.conversation_id)
        await self._write({key: data}, job.keep_seconds)
        # Whoever sees it finds the list.
        self._store.write(newest, place.encode(), keep_seconds=job.keep_seconds)
        if self._note_kept is not None:
            kept = KeptList(
                conversation_id=job.conversation_id,
                place=place,
                removed=removed,
                received=job.received,
                may_recall=job.may_recall,
                weight_bytes=job.weight_bytes,
            )
            self._note_kept(kept)

    async def _write(self, records: dict[str, bytes], keep_seconds: float) -> None:
        """Waits for the commit, so that the store never queues more than one slice. Raises StoreError."""
        *others, last = records.items()
        for key, value in others:
            self._store.write(key, value, keep_seconds=keep_seconds)
        await self._store.write_durably(*last, keep_seconds=keep_seconds)

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            log.warning("originals are not kept: %s; further cases are not logged", why)
        self._has_warned = True


async def find_own_originals(store: Store, tag: str, conversation_id: str) -> list[str]:
    """The names of the lists of a conversation, and of the originals that no other one of the tenant has."""
    found = await store.scan(make_key(tag, "taken", ""))
    own = await asyncio.to_thread(_choose_own, found, tag, conversation_id)
    newest = make_newest_key(tag, conversation_id)
    return own if await store.read(newest) is None else [*own, newest]


def _choose_own(found: Sequence[tuple[str, bytes]], tag: str, conversation_id: str) -> list[str]:
    prefix = make_list_prefix(tag, conversation_id)
    own = [(name, data) for name, data in found if name.startswith(prefix)]
    others = [(name, data) for name, data in found if not name.startswith(prefix)]
    digests = _list_digests(own) - _list_digests(others)
    return [*(name for name, _ in own), *(make_key(tag, "original", each) for each in sorted(digests))]


def _list_digests(found: Sequence[tuple[str, bytes]]) -> set[str]:
    return {original.digest for _, removed in read_lists(found) for original in removed.originals}


def _slices(job: _Job) -> Iterator[list[int]]:
    """The positions in slices of bounded size."""
    positions: list[int] = []
    slice_bytes = 0
    for position in job.positions:
        positions.append(position)
        slice_bytes += job.received.conversation.messages[position].size_bytes
        if slice_bytes >= _SLICE_BYTES or len(positions) >= _SLICE_MESSAGES:
            yield positions
            positions, slice_bytes = [], 0
    if positions:
        yield positions


def _pack_some(job: _Job, finder: OriginFinder, positions: Sequence[int]) -> list[tuple[Original, bytes]]:
    received = job.received
    return [
        (make_original(received, finder, position, job.base), zlib.compress(received.raw(position)))
        for position in positions
    ]


def make_original(
    received: Received, finder: OriginFinder, position: int, base: Pivot | None = None
) -> Original:
    """What a list says of a message. finder: of the same request.

    base: if it is a copy, made when the client cleared old results, what it covers is that of its origin.
    """
    raw, conversation = received.raw(position), received.conversation
    link_before = conversation.find_link(position)
    if base is not None and base.origin is not None and base.covers == position:
        link_before = base.origin
    return Original(
        position,
        len(raw),
        fingerprint(received.owner, raw),
        finder.find(position),
        link=conversation.find_link(position + 1),
        link_before=link_before,
    )


def find_keep_seconds(turn: Turn, keep_seconds: float) -> float | None:
    """How long a turn's originals are kept; None if they are not. keep_seconds: unless its policy says."""
    policy = turn.policy.originals
    if not policy.keep:
        return None
    return keep_seconds if policy.days is None else policy.days * _DAY_SECONDS


def unpack(data: bytes) -> bytes | None:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return None


def make_list_prefix(tag: str, conversation_id: str) -> str:
    """Of the names of a conversation's lists."""
    return make_key(tag, "taken", f"{conversation_id}:")


def make_newest_key(tag: str, conversation_id: str) -> str:
    """Of the record with the place of the list that was written last. Lists of earlier versions have none."""
    return make_key(tag, "newest", conversation_id)


def find_list_place(key: str) -> str:
    """Later lists have greater ones."""
    return key.rpartition(":")[2]


def read_lists(found: Sequence[tuple[str, bytes]]) -> Iterator[tuple[int, RemovedMessages]]:
    """The newest first, without damaged ones. Each with the number of those that are older."""
    for older in reversed(range(len(found))):
        plain = unpack(found[older][1])
        removed = parse_removed(plain) if plain is not None else None
        if removed is not None:
            yield older, removed


def _choose_newest(found: Sequence[tuple[str, bytes]], max_messages: int) -> Listing:
    lists, left_off = list[RemovedMessages](), 0
    for older, removed in read_lists(found):
        max_messages -= len(removed.originals)
        if lists and max_messages < 0:
            break
        lists.append(removed)
        left_off = older
    return Listing(lists, left_off, find_list_place(found[left_off][0]) if found else "")


def _find_owner(found: Sequence[tuple[str, bytes]], digest: str) -> str | None:
    for _, removed in read_lists(found):
        if any(original.digest == digest for original in removed.originals):
            return removed.owner
    return None
