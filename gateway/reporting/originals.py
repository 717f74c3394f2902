"""The archive of original messages that compaction or pruning removed from what is sent, for operators to
read.

A list names the messages that were removed together; it holds none of their text. The messages are kept as
they were received, compressed, under a fingerprint.
"""

import asyncio
import hashlib
import logging
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.cut import Cut
from gateway.core.history.pivot import Batch, Pivot, is_on_chain
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.reporting.work_queue import WorkQueue
from gateway.store import Store, StoreError
from gateway.store.keys import make_key, make_tag

RemovalKind = Literal["summary", "digest", "prune"]

log = logging.getLogger("gateway.archive")

# Bodies that wait to be archived; the cache of recognized bodies is as large.
_WAITING_BYTES: Final = 64 << 20
# A body is archived in slices: one is compressed in some 20 ms outside the event loop, and committed at once.
_SLICE_BYTES: Final = 1 << 20
_SLICE_MESSAGES: Final = 128
_KEPT_BYTES: Final = 1 << 18
_KEPT_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 350
_DAY_SECONDS: Final = 86_400


class Original(msgspec.Struct, frozen=True, array_like=True):
    """position: in the conversation after its leading block. digest: the fingerprint that the archive keeps
    the message under.
    """

    position: int
    size_bytes: int
    digest: str


class RemovedMessages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages that one compaction replaced or one batch marked. originals: as in the conversation."""

    version: Literal[1] = 1
    owner: str
    created_seconds: float
    kind: RemovalKind
    originals: Sequence[Original]


_decoder: Final = msgspec.json.Decoder(RemovedMessages)


def render_removed(removed: RemovedMessages) -> bytes:
    return msgspec.json.encode(removed)


def parse_removed(data: bytes) -> RemovedMessages | None:
    """None if the list is damaged or has another version."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


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


class OriginalsArchive:
    """keep_seconds: unless the policy says otherwise."""

    def __init__(self, store: Store, keep_seconds: float) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
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
        if self._enqueue(turn, kind, range(start, pivot.covers)):
            now_kept = _KeptRange(pivot.key, pivot.covers, first)
            self._kept.put(turn.conversation_id, now_kept, _KEPT_WEIGHT_BYTES)

    def keep_pruned(self, turn: Turn, batch: Batch) -> None:
        """The messages that a batch marks."""
        self._enqueue(turn, "prune", [mark.position for mark in batch.marks])

    def _enqueue(self, turn: Turn, kind: RemovalKind, positions: Sequence[int]) -> bool:
        policy = turn.policy.originals
        if not policy.keep:
            return False
        seconds = self._keep_seconds if policy.days is None else policy.days * _DAY_SECONDS
        conversation = turn.received.conversation
        positions = [position for position in positions if not conversation.is_gone(position)]
        job = _Job(turn.received, turn.conversation_id, kind, positions, seconds)
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
        found = await self._store.scan(_list_prefix(tag, conversation_id))
        if behind is not None:
            found = [each for each in found if _find_list_place(each[0]) < behind]
        return await asyncio.to_thread(_choose_newest, found, max_messages)

    async def load(self, tag: str, conversation_id: str, digest: str) -> bytes | None:
        """An original of this conversation; those of other conversations are not returned."""
        found = await self._store.scan(_list_prefix(tag, conversation_id))
        owner = await asyncio.to_thread(_find_owner, found, digest)
        if owner is None:
            return None
        data = await self._store.read(make_key(tag, "original", digest))
        raw = await asyncio.to_thread(_unpack, data) if data is not None else None
        return raw if raw is not None and _fingerprint(owner, raw) == digest else None

    # The background job.

    async def _keep(self, job: _Job) -> None:
        """The list is written last, so the messages that it names exist."""
        owner, originals = job.received.owner, []
        tag = make_tag(owner)
        try:
            for positions in _slices(job):
                some = await asyncio.to_thread(_pack_some, owner, job.received, positions)
                records = {make_key(tag, "original", each.digest): data for each, data in some}
                await self._write(records, job.keep_seconds)
                originals += [each for each, _ in some]
            now_ns = time.time_ns()
            removed = RemovedMessages(
                owner=owner, created_seconds=now_ns / 1e9, kind=job.kind, originals=originals
            )
            data = await asyncio.to_thread(lambda: zlib.compress(render_removed(removed)))
            key = f"{_list_prefix(tag, job.conversation_id)}{now_ns:016x}"
            await self._write({key: data}, job.keep_seconds)
        except StoreError:
            self._warn("the store cannot be written")

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
    return await asyncio.to_thread(_choose_own, found, tag, conversation_id)


def _choose_own(found: Sequence[tuple[str, bytes]], tag: str, conversation_id: str) -> list[str]:
    prefix = _list_prefix(tag, conversation_id)
    own = [(name, data) for name, data in found if name.startswith(prefix)]
    others = [(name, data) for name, data in found if not name.startswith(prefix)]
    digests = _list_digests(own) - _list_digests(others)
    return [*(name for name, _ in own), *(make_key(tag, "original", each) for each in sorted(digests))]


def _list_digests(found: Sequence[tuple[str, bytes]]) -> set[str]:
    return {original.digest for _, removed in _read_lists(found) for original in removed.originals}


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


def _pack_some(owner: str, received: Received, positions: Sequence[int]) -> list[tuple[Original, bytes]]:
    packed = []
    for position in positions:
        raw = received.raw(position)
        packed.append((Original(position, len(raw), _fingerprint(owner, raw)), zlib.compress(raw)))
    return packed


def _fingerprint(owner: str, raw: bytes) -> str:
    """SHA-256 of the tenant and the message as it was received, so tenants never share an original."""
    name = owner.encode()
    return hashlib.sha256(b"%d:%s" % (len(name), name) + raw).hexdigest()


def _unpack(data: bytes) -> bytes | None:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return None


def _list_prefix(tag: str, conversation_id: str) -> str:
    return make_key(tag, "taken", f"{conversation_id}:")


def _find_list_place(key: str) -> str:
    """Later lists have greater ones."""
    return key.rpartition(":")[2]


def _read_lists(found: Sequence[tuple[str, bytes]]) -> Iterator[tuple[int, RemovedMessages]]:
    """The newest first, without damaged ones. Each with the number of those that are older."""
    for older in reversed(range(len(found))):
        plain = _unpack(found[older][1])
        removed = parse_removed(plain) if plain is not None else None
        if removed is not None:
            yield older, removed


def _choose_newest(found: Sequence[tuple[str, bytes]], max_messages: int) -> Listing:
    lists, left_off = list[RemovedMessages](), 0
    for older, removed in _read_lists(found):
        max_messages -= len(removed.originals)
        if lists and max_messages < 0:
            break
        lists.append(removed)
        left_off = older
    return Listing(lists, left_off, _find_list_place(found[left_off][0]) if found else "")


def _find_owner(found: Sequence[tuple[str, bytes]], digest: str) -> str | None:
    for _, removed in _read_lists(found):
        if any(original.digest == digest for original in removed.originals):
            return removed.owner
    return None
