"""The archive of original messages that compaction or pruning removed from what is sent, for operators to
read.

A list names the messages that were removed together; it holds none of their text. The messages are kept as
they were received, compressed, under a fingerprint.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from gateway.bounds.background import WorkQueue
from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.history.pivot import Batch, Pivot, is_on_chain
from gateway.originals.parts import OriginFinder
from gateway.originals.removed import Original, RemovalKind, RemovedMessages, fingerprint
from gateway.state.records import Kind, Records, TaggedRecord
from gateway.store.blobs import Blobs
from gateway.store.interface import Store, StoreError
from gateway.store.keys import make_tag

M = TypeVar("M")
log = logging.getLogger("gateway.archive")

# Bodies that wait to be archived.
_WAITING_BYTES: Final = 64 << 20
# Messages are archived and indexed in slices: one is compressed in some 10 ms, and indexed in some 100 ms,
# outside the event loop, and committed at once.
_SLICE_BYTES: Final = 512 << 10
_SLICE_MESSAGES: Final = 128
# Their lists hold all messages up to their last one, together with earlier ones.
_WHOLE_KINDS: Final = frozenset({"summary", "digest"})
_KIND: Final = "removal"


class Listing(msgspec.Struct, frozen=True):
    """left_off: the number of further lists. last: the place of the last list, behind which they are."""

    lists: list[RemovedMessages]
    left_off: int
    last: str


class _Job(msgspec.Struct, frozen=True):
    """kept_before: what stands before this position is left out if an earlier summary has kept it."""

    received: Received
    # Of the owner.
    tag: str
    conversation_id: str
    kind: RemovalKind
    positions: Sequence[int]
    kept_before: int
    keep_seconds: float
    may_recall: bool

    def is_of(self, tag: str, conversation_id: str | None) -> bool:
        """Of a tenant, or of one conversation of it."""
        return self.tag == tag and conversation_id in (None, self.conversation_id)


class Removals:
    """The lists of all conversations in the store, each under its conversation and its place."""

    def __init__(self, store: Store, keep_seconds: float) -> None:
        """keep_seconds: of lists that do not say it."""
        self._store = store
        self._keep_seconds = keep_seconds
        self.records = Records(store, Kind(name=_KIND, type=RemovedMessages, keep_seconds=keep_seconds))

    async def load(self, tag: str, conversation_id: str) -> list[TaggedRecord[RemovedMessages]]:
        """The oldest first. Raises StoreError."""
        listed = await self._store.list(_KIND, tag, conversation_id)
        found = await asyncio.to_thread(lambda: list(self.records.parse_listed(listed)))
        return sorted(found, key=lambda each: each.name)

    def find_expiry(self, removed: RemovedMessages) -> float:
        """Unix time."""
        kept = self._keep_seconds if removed.keep_seconds is None else removed.keep_seconds
        return removed.created_seconds + kept


class OriginalsArchive:
    """keep_seconds: unless the policy says otherwise. note_kept: hears of each list that was written:
    the tag of its owner, its conversation, and whether the policy lets the gateway search it by itself.
    """

    def __init__(
        self,
        removals: Removals,
        blobs: Blobs,
        keep_seconds: float,
        note_kept: Callable[[str, str, bool], None] | None = None,
    ) -> None:
        self.removals = removals
        self._blobs = blobs
        self._keep_seconds = keep_seconds
        # The job that runs, and whether its conversation was deleted meanwhile.
        self._current: _Job | None = None
        self._is_forgotten = False
        self._note_kept = note_kept
        self._queue = WorkQueue(self._keep, _WAITING_BYTES)
        self._has_warned = False

    @property
    def waiting_bytes(self) -> int:
        """What is queued."""
        return self._queue.waiting_bytes

    async def finish(self) -> None:
        """Returns once everything that was queued is archived."""
        await self._queue.finish()

    def forget(self, tag: str, conversation_id: str | None = None) -> None:
        """A tenant, or one conversation of it: what is queued is not archived."""
        self._queue.drop_where(lambda job: job.is_of(tag, conversation_id))
        if self._current is not None and self._current.is_of(tag, conversation_id):
            self._is_forgotten = True

    # Archiving. These calls only queue a job.

    def keep_compacted(self, turn: Turn, cut: Cut, pivot: Pivot) -> None:
        """The messages that a durable pivot replaces: those that the compaction folded, and those before them
        that no earlier one of the same history has kept.
        """
        kind: RemovalKind = "digest" if pivot.is_digest else "summary"
        self._enqueue(turn, kind, range(pivot.opening_end, pivot.covers), cut.start)

    def keep_pruned(self, turn: Turn, batch: Batch) -> None:
        """The messages that a batch marks."""
        self._enqueue(turn, "cut" if batch.is_cut else "prune", [mark.position for mark in batch.marks], 0)

    def _enqueue(self, turn: Turn, kind: RemovalKind, positions: Sequence[int], kept_before: int) -> None:
        if not turn.policy.originals.keep:
            return
        conversation = turn.received.conversation
        job = _Job(
            turn.received,
            make_tag(turn.owner),
            turn.conversation_id,
            kind,
            [position for position in positions if not conversation.is_gone(position)],
            kept_before,
            turn.policy.originals.find_seconds(self._keep_seconds),
            turn.policy.recall != "off",
        )
        if not self._queue.put(job, turn.weight_bytes):
            self._warn("too much is waiting to be archived")

    # Reading. What is absent, expired or damaged is left out, or None. Raises StoreError.

    async def load_lists(
        self, tag: str, conversation_id: str, max_messages: int, behind: str | None = None
    ) -> Listing:
        """The newest list first, and that one in any case; the others as long as they hold no more than
        max_messages together. tag: of the owner, see `store.keys`. behind: the last place of another listing.
        """
        found = await self.removals.load(tag, conversation_id)
        if behind is not None:
            found = [each for each in found if find_list_place(each.name) < behind]
        return _choose_newest(found, max_messages)

    async def load(self, tag: str, conversation_id: str, digest: str) -> bytes | None:
        """An original of this conversation; those of other conversations are not returned."""
        for listed in reversed(await self.removals.load(tag, conversation_id)):
            removed = listed.record
            if any(original.digest == digest for original in removed.originals):
                packed = await self._blobs.get(tag, conversation_id, [digest])
                return await asyncio.to_thread(read_packed, packed, removed.owner, digest)
        return None

    # The background job.

    async def _keep(self, job: _Job) -> None:
        """The list is written last, so the messages that it names exist."""
        originals: list[Original] = []
        self._current, self._is_forgotten = job, False
        finder = OriginFinder(job.received)
        try:
            chosen, messages = await self._choose_positions(job), job.received.conversation.messages
            for positions in cut_slices(chosen, lambda position: messages[position].size_bytes):
                some = await asyncio.to_thread(_pack_some, job, finder, positions)
                if self._is_forgotten:
                    return
                values = {each.digest: data for each, data in some}
                await self._blobs.put(job.tag, job.conversation_id, values, keep_seconds=job.keep_seconds)
                originals += [each for each, _ in some]
            if not self._is_forgotten:
                await self._write_list(job, originals)
        except StoreError:
            # The next compaction archives it.
            self._warn("the store cannot be written")
        finally:
            if self._is_forgotten:
                # Some of it may have been written behind the deletion.
                with suppress(StoreError):
                    await self._blobs.delete(job.tag, [job.conversation_id])
            self._current = None

    async def _choose_positions(self, job: _Job) -> Sequence[int]:
        """Raises StoreError."""
        if not job.positions or job.positions[0] >= job.kept_before:
            return job.positions
        conversation, kept = job.received.conversation, set[int]()
        for each in await self.removals.load(job.tag, job.conversation_id):
            originals = each.record.originals
            if not originals or each.record.kind not in _WHOLE_KINDS:
                continue
            # A link stands for all that came before.
            last = originals[-1]
            if is_on_chain(conversation, last.link, last.position + 1):
                kept.update(original.position for original in originals)
        return [at for at in job.positions if at >= job.kept_before or at not in kept]

    async def _write_list(self, job: _Job, originals: Sequence[Original]) -> None:
        """Raises StoreError."""
        now_ns, identity = time.time_ns(), job.conversation_id
        removed = RemovedMessages(
            owner=job.received.owner,
            created_seconds=now_ns / 1e9,
            kind=job.kind,
            originals=originals,
            format=job.received.format.name,
            keep_seconds=job.keep_seconds,
        )
        name = f"{identity}/{now_ns:016x}"
        self.removals.records.put(removed.owner, name, removed, group=identity, keep_seconds=job.keep_seconds)
        if self._note_kept is not None:
            self._note_kept(job.tag, job.conversation_id, job.may_recall)

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            log.warning("originals are not kept: %s; further cases are not logged", why)
        self._has_warned = True


def cut_slices(messages: Sequence[M], measure: Callable[[M], int]) -> Iterator[list[M]]:
    """The same for the same messages. measure: the bytes of one, which may be larger than a slice."""
    some: list[M] = []
    slice_bytes = 0
    for message in messages:
        some.append(message)
        slice_bytes += measure(message)
        if slice_bytes >= _SLICE_BYTES or len(some) >= _SLICE_MESSAGES:
            yield some
            some, slice_bytes = [], 0
    if some:
        yield some


def _pack_some(job: _Job, finder: OriginFinder, positions: Sequence[int]) -> list[tuple[Original, bytes]]:
    received = job.received
    return [
        (make_original(received, finder, position), zlib.compress(received.raw(position)))
        for position in positions
    ]


def make_original(received: Received, finder: OriginFinder, position: int) -> Original:
    """What a list says of a message. finder: of the same request."""
    raw, conversation = received.raw(position), received.conversation
    return Original(
        position,
        len(raw),
        fingerprint(received.owner, raw),
        finder.find(position),
        link=conversation.find_link(position + 1),
        link_before=conversation.find_link(position),
    )


def read_packed(packed: Mapping[str, bytes], owner: str, digest: str) -> bytes | None:
    """An original. packed: as the archive keeps them, by their digests. None if it is absent or damaged."""
    try:
        raw = zlib.decompress(packed.get(digest, b""))
    except zlib.error:
        return None
    return raw if fingerprint(owner, raw) == digest else None


def find_list_place(name: str) -> str:
    """Of the record of a list. Later lists have greater ones."""
    return name.rpartition("/")[2]


def _choose_newest(found: Sequence[TaggedRecord[RemovedMessages]], max_messages: int) -> Listing:
    """found: the oldest first."""
    lists, left_off = list[RemovedMessages](), 0
    for older in reversed(range(len(found))):
        removed = found[older].record
        max_messages -= len(removed.originals)
        if lists and max_messages < 0:
            break
        lists.append(removed)
        left_off = older
    return Listing(lists, left_off, find_list_place(found[left_off].name) if found else "")
