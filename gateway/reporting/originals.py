"""Messages that were taken out of what is sent, together: folded by one compaction, or marked by one batch.

Names them, and holds none of their words.
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
from gateway.lru import Lru
from gateway.reporting.work_queue import WorkQueue
from gateway.store import Store, StoreError

RemovalKind = Literal["summary", "digest", "prune"]


class Original(msgspec.Struct, frozen=True, array_like=True):
    """position: as in a conversation, its leading block aside. digest: what the archive keeps it under."""

    position: int
    size_bytes: int
    digest: str


class RemovedMessages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """originals: in the order of the conversation."""

    version: Literal[1] = 1
    owner: str
    created_seconds: float
    kind: RemovalKind
    originals: Sequence[Original]


_decoder: Final = msgspec.json.Decoder(RemovedMessages)


def render_taken(taken: RemovedMessages) -> bytes:
    return msgspec.json.encode(taken)


def parse_taken(data: bytes) -> RemovedMessages | None:
    """None for anything that is not whole."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


# JOINED: Keeps what was taken out of what is sent, as it was received, for operators to read (

log = logging.getLogger("gateway.archive")

# Bodies that wait to be taken apart; as much as recognition keeps of them anyway.
_WAITING_BYTES: Final = 64 << 20
# Of a body, in one go: compressed outside of the loop in some 20 ms, and committed together.
_SLICE_BYTES: Final = 1 << 20
_SLICE_MESSAGES: Final = 128
_FOLDED_BYTES: Final = 1 << 18
_FOLDED_WEIGHT_BYTES: Final = 400
_DAY_SECONDS: Final = 86_400


class _Folded(msgspec.Struct, frozen=True):
    """Up to where, and from where on, a conversation's messages are kept already. key: the chain there."""

    key: str
    covers: int
    first: int


class Listing(msgspec.Struct, frozen=True):
    """left_off: how many lists beyond these there are."""

    lists: list[RemovedMessages]
    left_off: int


class _Job(msgspec.Struct, frozen=True):
    received: Received
    conversation: str
    kind: RemovalKind
    positions: Sequence[int]
    keep_seconds: float


class OriginalsArchive:
    def __init__(self, store: Store, keep_seconds: float) -> None:
        """keep_seconds: where a policy says nothing else."""
        self._store = store
        self._keep_seconds = keep_seconds
        self._backlog = WorkQueue(self._keep, _WAITING_BYTES)
        self._folded: Lru[str, _Folded] = Lru(_FOLDED_BYTES)
        self._has_warned = False

    async def finish(self) -> None:
        """Returns once everything that was handed over is kept."""
        await self._backlog.finish()

    # What was taken out; plain calls.

    def keep_folded(self, turn: Turn, cut: Cut, pivot: Pivot) -> None:
        """What a durable pivot folds. The first time here also what it stands for beyond that: a fork, or a
        restart, builds on what others folded.
        """
        first = 0 if pivot.opening_chars is not None else pivot.opening_end
        kept = self._folded.get(turn.conversation_id)
        is_known = kept is not None and kept.first <= first
        if kept is not None and is_known and is_on_chain(turn.received.conversation, kept.key, kept.covers):
            start = min(cut.start, kept.covers)
        else:
            start = first
        kind: RemovalKind = "digest" if pivot.is_digest else "summary"
        if self._hand_over(turn, kind, range(start, pivot.covers)):
            folded = _Folded(pivot.key, pivot.covers, first)
            self._folded.put(turn.conversation_id, folded, _FOLDED_WEIGHT_BYTES)

    def keep_marked(self, turn: Turn, batch: Batch) -> None:
        """What a batch marks."""
        self._hand_over(turn, "prune", [mark.position for mark in batch.marks])

    def _hand_over(self, turn: Turn, kind: RemovalKind, positions: Sequence[int]) -> bool:
        policy = turn.policy.originals
        if not policy.keep:
            return False
        seconds = self._keep_seconds if policy.days is None else policy.days * _DAY_SECONDS
        job = _Job(turn.received, turn.conversation_id, kind, positions, seconds)
        if self._backlog.put(job, len(turn.received.body.data)):
            return True
        self._warn("too much is waiting")
        return False

    # Reading; None and nothing where it is not there, no longer there, or damaged.

    async def list(self, conversation: str, most_messages: int) -> Listing:
        """The newest first, the newest whole."""
        found = await self._store.scan(_list_prefix(conversation))
        return await asyncio.to_thread(_choose_newest, found, most_messages)

    async def read(self, conversation: str, digest: str) -> bytes | None:
        """An original of this conversation: another one's are not its."""
        found = await self._store.scan(_list_prefix(conversation))
        owner = await asyncio.to_thread(_find_owner, found, digest)
        if owner is None:
            return None
        data = await self._store.read(f"original:{digest}")
        raw = await asyncio.to_thread(_unpack, data) if data is not None else None
        return raw if raw is not None and _name(owner, raw) == digest else None

    # In the background.

    async def _keep(self, job: _Job) -> None:
        """The list last: what it names is there."""
        owner, originals = job.received.tenant, []
        try:
            for positions in _slices(job):
                some = await asyncio.to_thread(_pack_some, owner, job.received, positions)
                await self._write({f"original:{each.digest}": data for each, data in some}, job.keep_seconds)
                originals += [each for each, _ in some]
            taken = RemovedMessages(
                owner=owner, created_seconds=time.time(), kind=job.kind, originals=originals
            )
            data = await asyncio.to_thread(lambda: zlib.compress(render_taken(taken)))
            key = f"{_list_prefix(job.conversation)}{time.time_ns():016x}"
            await self._write({key: data}, job.keep_seconds)
        except StoreError:
            self._warn("the store takes nothing")

    async def _write(self, records: dict[str, bytes], keep_seconds: float) -> None:
        """Waits for the commit, so that no more than this is ever queued. Raises StoreError."""
        *others, last = records.items()
        for key, value in others:
            self._store.write(key, value, keep_seconds=keep_seconds)
        await self._store.write_durably(*last, keep_seconds=keep_seconds)

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            log.warning("originals are not kept: %s; said once", why)
        self._has_warned = True


def _slices(job: _Job) -> Iterator[list[int]]:
    """The positions in pieces, none of them much to do at once."""
    piece: list[int] = []
    piece_bytes = 0
    for position in job.positions:
        piece.append(position)
        piece_bytes += job.received.conversation.messages[position].size_bytes
        if piece_bytes >= _SLICE_BYTES or len(piece) >= _SLICE_MESSAGES:
            yield piece
            piece, piece_bytes = [], 0
    if piece:
        yield piece


def _pack_some(owner: str, received: Received, positions: Sequence[int]) -> list[tuple[Original, bytes]]:
    packed = []
    for position in positions:
        raw = received.raw(position)
        packed.append((Original(position, len(raw), _name(owner, raw)), zlib.compress(raw)))
    return packed


def _name(owner: str, raw: bytes) -> str:
    """SHA-256 of the message as it was received, the tenant mixed in."""
    name = owner.encode()
    return hashlib.sha256(b"%d:%s" % (len(name), name) + raw).hexdigest()


def _unpack(data: bytes) -> bytes | None:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return None


def _list_prefix(conversation: str) -> str:
    return f"taken:{conversation}:"


def _read_lists(found: Sequence[tuple[str, bytes]]) -> Iterator[RemovedMessages]:
    """The newest first; what is not whole is left out."""
    for _, data in reversed(found):
        plain = _unpack(data)
        taken = parse_taken(plain) if plain is not None else None
        if taken is not None:
            yield taken


def _choose_newest(found: Sequence[tuple[str, bytes]], most_messages: int) -> Listing:
    lists: list[RemovedMessages] = []
    for taken in _read_lists(found):
        most_messages -= len(taken.originals)
        if lists and most_messages < 0:
            break
        lists.append(taken)
    return Listing(lists, len(found) - len(lists))


def _find_owner(found: Sequence[tuple[str, bytes]], digest: str) -> str | None:
    for taken in _read_lists(found):
        if any(original.digest == digest for original in taken.originals):
            return taken.owner
    return None
