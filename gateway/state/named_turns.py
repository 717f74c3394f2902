"""Responses that later requests may name, and their single items, so that a restart does not lose them.

They are held in memory by `conversations.stored_responses`; here they are only written and read again. What
a name stands for is a large value of its conversation. A small record says which conversation that is.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.bounds.background import WorkQueue
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.state.memory import Memory, Whose
from gateway.state.owned_names import make_name_key
from gateway.state.records import Kind, Records
from gateway.store.blobs import Blobs
from gateway.store.interface import LATEST, Store, StoreError
from gateway.store.keys import make_tag

# What fills a window of half a million tokens. A larger one is kept in memory alone: reading it takes more
# than the 20 ms that a request may cost the event loop.
_MAX_BYTES: Final = 2 << 20
# What waits to be written. What is beyond is kept in memory alone, too.
_WAITING_BYTES: Final = 32 << 20
# Times of some five thousand turns.
_SAVED_BYTES: Final = 2 << 20
# A turn that is in use is written again so often, so that it does not expire.
_AGAIN_SECONDS: Final = 86_400.0

_Kind = Literal["turn", "item"]


class NamedTurn(NamedTuple):
    """What one request and its response added to the response before."""

    # The response that the request continued; None if the request brought everything.
    previous: str | None
    # A body with the items that the request added.
    own: bytes
    # The items of the response.
    items: tuple[bytes, ...] = ()
    # What the gateway changed in the history before it was sent upstream, as `fingerprint_plan` says it.
    sent: str = ""
    # Names of responses before it, the newest first: of as many as are loaded together with it.
    earlier: tuple[str, ...] = ()
    # The id of its conversation, with which it is deleted.
    conversation: str = ""

    @property
    def size_bytes(self) -> int:
        size_bytes = len(self.own)
        for item in self.items:
            size_bytes += len(item)
        return size_bytes


class _NamedJob(NamedTuple):
    owner: str
    conversation: str
    # The newest deletion before it was queued.
    purges: int
    kind: _Kind
    key: str
    value: bytes

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.key}"


class _SavedAt(NamedTuple):
    whose: Whose
    since_seconds: float
    generation: int


_encode: Final = msgspec.msgpack.encode
_decoder: Final = msgspec.msgpack.Decoder(NamedTurn)


class NamedTurns:
    """Only the tenant and the upstream of a name find it again."""

    def __init__(
        self,
        store: Store,
        memory: Memory,
        blobs: Blobs,
        keep_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = Records(store, Kind(name="named", type=str, keep_seconds=keep_seconds))
        self._memory = memory
        self._blobs = blobs
        self._clock = clock
        self._queue = WorkQueue(self._write, _WAITING_BYTES)
        # What is queued or being written, by the tag of its owner and its name: found meanwhile.
        self._unwritten: dict[tuple[str, str], _NamedJob] = {}
        # When a turn was last queued, by its name in the store. Kept here, because a turn may leave memory
        # after each request.
        self._saved: Lru[str, _SavedAt] = memory.shelf(lambda saved: (saved.whose,), _SAVED_BYTES)

    @property
    def waiting_bytes(self) -> int:
        """What is queued."""
        return self._queue.waiting_bytes

    async def finish(self) -> None:
        """Returns once what was queued is with the store."""
        await self._queue.finish()

    async def load_all(self, owner: str, upstream: str, names: Sequence[str]) -> dict[str, NamedTurn]:
        """Those of the responses that the store has, in two round trips."""
        found: dict[str, NamedTurn] = {}
        for name, value in (await self.load("turn", owner, upstream, names)).items():
            try:
                found[name] = _decoder.decode(value)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
        return found

    def save(self, owner: str, upstream: str, name: str, turn: NamedTurn) -> None:
        """Queued for the store."""
        key = make_name_key(owner, upstream, name)
        # One that is too large never will be.
        is_large = turn.size_bytes > _MAX_BYTES
        if is_large or self._put("turn", key, owner, turn.conversation, _encode(turn)):
            name, whose = f"turn.{key}", Whose(make_tag(owner), turn.conversation)
            saved = _SavedAt(whose, self._clock(), self._memory.generation)
            self._saved.put(name, saved, ENTRY_WEIGHT_BYTES + weigh_texts(name))

    def save_item(self, owner: str, upstream: str, name: str, conversation: str, item: bytes) -> None:
        if len(item) <= _MAX_BYTES:
            self._put("item", make_name_key(owner, upstream, name), owner, conversation, item)

    def is_due(self, owner: str, upstream: str, name: str) -> bool:
        """Whether a turn that is in use must be written: it may be in no store, or it would expire there."""
        saved = self._saved.get(f"turn.{make_name_key(owner, upstream, name)}")
        if saved is None or saved.generation != self._memory.generation:
            return True
        return self._clock() - saved.since_seconds > _AGAIN_SECONDS

    def _put(self, kind: _Kind, key: str, owner: str, conversation: str, value: bytes) -> bool:
        job = _NamedJob(owner, conversation, self._memory.purges, kind, key, value)
        if not self._queue.put(job, len(value)):
            return False
        self._unwritten[make_tag(owner), job.name] = job
        return True

    async def load(self, kind: _Kind, owner: str, upstream: str, names: Sequence[str]) -> dict[str, bytes]:
        """Those of the values that the store has, in two round trips. A request whose names cannot be asked
        for passes as it came, as one that names something else.
        """
        tag = make_tag(owner)
        keys = {f"{kind}.{make_name_key(owner, upstream, name)}": name for name in names}
        jobs = {key: job for key in keys if (job := self._unwritten.get((tag, key))) is not None}
        found = {key: job.value for key, job in jobs.items() if not self._is_deleted(job)}
        asked = [key for key in keys if key not in jobs]
        with suppress(StoreError):
            places = await self._places.get_each(owner, asked, wait=LATEST) if asked else {}
            for conversation in set(places.values()):
                some = [key for key, place in places.items() if place == conversation]
                found |= await self._blobs.get(tag, conversation, some)
        return {keys[key]: value for key, value in found.items()}

    async def _write(self, job: _NamedJob) -> None:
        tag = make_tag(job.owner)
        try:
            if self._is_deleted(job):
                return
            await self._blobs.put(tag, job.conversation, {job.name: job.value})
            if self._is_deleted(job):
                await self._blobs.delete(tag, [job.conversation])
            else:
                self._places.put(job.owner, job.name, job.conversation, group=job.conversation)
        except StoreError:
            # The store has logged it. It is in memory, and is written again when it is used.
            self._saved.pop(job.name)
        finally:
            if self._unwritten.get((tag, job.name)) is job:
                del self._unwritten[tag, job.name]

    def _is_deleted(self, job: _NamedJob) -> bool:
        """Whether its conversation was, since it was queued."""
        return self._memory.was_purged(job.purges, make_tag(job.owner), job.conversation)
