"""What is known of conversations: heads, pivots and their outlines, mark batches, markers, calibrations,
learned limits.

Decoded records in memory in front of a store. The compactor is its only writer, but for learned
limits, which are the limits book's. Everything is keyed by chains, which begin with the tenant, or by the
tenant itself; the owner inside each record is checked on reading all the same.
"""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

from gateway.core.compaction.manual import Folded
from gateway.core.history.cleared_results import ResultHashesRecord
from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head, is_worth_saving
from gateway.core.history.pivot import Batch, Pivot, is_on_chain
from gateway.core.limits.learned import Learned
from gateway.core.sizing.estimate import Calibration, Meter
from gateway.lru import Lru
from gateway.state.records import Marker, parse_record, render_record
from gateway.store import Store

# Heads are written a moment later, only the newest of each conversation: a lost one costs an estimate.
_HEADS_LINGER_SECONDS = 2.0
_HEAD_WEIGHT_BYTES = 900
_RECORD_WEIGHT_BYTES = 700
_ASKED_BYTES = 1 << 20
_REFRESH_SECONDS = 86_400.0
_ASKED_WEIGHT_BYTES = 200
# A side call and the main call may end at one chain; more than this many scopes there are noise.
_MOST_SCOPES = 4


class State:
    def __init__(self, store: Store, keep_seconds: float, max_bytes: int) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._heads: Lru[bytes, tuple[Head, ...]] = Lru(max_bytes)
        self._pivots: Lru[bytes, Pivot] = Lru(max_bytes)
        self._batches: Lru[bytes, Batch] = Lru(max_bytes)
        # Markers of an earlier process, found with their heads; and those that wait for a next request.
        self._waiting: Lru[str, Marker] = Lru(_ASKED_BYTES)
        # Pivots made by hand that no request has been sent with yet, by branch.
        self._by_hand: Lru[str, Pivot] = Lru(max_bytes)
        self._calibrations: Lru[tuple[str, Meter], Calibration] = Lru(max_bytes)
        self._learned: Lru[tuple[str, str, str], Learned] = Lru(max_bytes)
        # Branches whose pivots the store has been asked for; with the evictions until then, for after the
        # next one memory may have lost what the store still has.
        self._asked_pivots: Lru[tuple[str, str], int] = Lru(_ASKED_BYTES)
        # When the records in use were last written anew.
        self._refreshed: Lru[str, float] = Lru(_ASKED_BYTES)
        self._unwritten: dict[tuple[str, str], Head] = {}
        # The newest one of each branch that the store has, or is about to have, and since when.
        self._written: Lru[tuple[str, str], tuple[Head, float]] = Lru(max_bytes)
        self._flush: asyncio.TimerHandle | None = None

    # Heads

    def find_head(self, conversation: Conversation, scope: str) -> Head | None:
        """Walks the chain from its end through memory; of several heads at one place, the one of this
        scope.
        """
        chain = conversation.chain
        for position in range(chain.length - 1, 0, -1):
            heads = self._heads.get(chain[position])
            if heads:
                newest = heads[0]
                if newest.scope == scope:
                    return newest
                return next((head for head in heads if head.scope == scope), newest)
        return None

    def find_past(self, conversation: Conversation, scope: str) -> list[Head]:
        """All heads of this scope on the chain that told their usage and are in memory, the oldest first."""
        found = (self._heads.get(key) for key in conversation.chain if key in self._heads)
        return [
            head for heads in found if heads for head in heads if head.scope == scope and head.prompt_tokens
        ]

    async def ask_head(self, owner: str, conversation: Conversation, scope: str) -> Head | None:
        """The same through the store: for what another process, or this one before a restart, has seen."""
        await self._load_head(owner, conversation)
        return self.find_head(conversation, scope)

    def find_followers(self, pivot: Pivot) -> list[Head]:
        """Heads in memory that were sent with this pivot, under any of its keys; in no order."""
        keys = {
            other.key
            for other in self._pivots.values()
            if (other.owner, other.covers, other.created_seconds, other.summary)
            == (pivot.owner, pivot.covers, pivot.created_seconds, pivot.summary)
        }
        return [head for heads in self._heads.values() for head in heads if head.pivot in keys]

    def claim_continuation(self, head: Head, key: str) -> str:
        """The chain of the request that went on from this head first: this one, if none did before."""
        if head.followed_by is None:
            head.followed_by = key
        return head.followed_by

    def read_continuation(self, head: Head, key: str) -> str:
        """The same for one that goes on nowhere, and leaves the place to the next one."""
        return head.followed_by or key

    async def _load_head(self, owner: str, conversation: Conversation) -> None:
        keys = [f"head:{key.hex()}" for key in reversed(conversation.chain[1:])]
        found = await self._store.read_first(keys) if keys else None
        head = parse_record(Head, owner, found[1]) if found else None
        if head is None or found is None or found[0] != f"head:{head.key}":
            return
        self._remember_head(head)
        marker = await self._load(Marker, owner, f"marker:{head.key}")
        if marker is not None:
            self._waiting.put(marker.key, marker, _marker_weight(marker))

    def is_news(self, head: Head, line_tokens: int = 0) -> bool:
        """Does it say more than the one that the store has of its branch (`says_more`)? Once a day that one
        is old.
        """
        written = self._written.get((head.conversation, head.scope))
        return written is None or self._is_old(written[1]) or is_worth_saving(head, written[0], line_tokens)

    def save_head(self, head: Head, *, is_worth_writing: bool) -> None:
        """In memory at once; in the store a moment later, where a restart would miss it."""
        if not head.length:
            # Every conversation begins with nothing: that would be a head of all of them.
            return
        self._remember_head(head)
        if not is_worth_writing:
            return
        branch = head.conversation, head.scope
        self._unwritten[branch] = head
        self._written.put(branch, (head, time.monotonic()), _HEAD_WEIGHT_BYTES)
        if self._flush is None:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_later(_HEADS_LINGER_SECONDS, self.flush_heads)

    def flush_heads(self) -> None:
        self._flush = None
        for head in self._unwritten.values():
            self._write(head.owner, f"head:{head.key}", head)
        self._unwritten.clear()

    def _remember_head(self, head: Head) -> None:
        key = bytes.fromhex(head.key)
        others = []
        for other in self._heads.get(key) or ():
            if other.scope != head.scope:
                others.append(other)
            elif head.followed_by is None:
                # It gives way; who went on from there did so all the same.
                head.followed_by = other.followed_by
        heads = (head, *others[: _MOST_SCOPES - 1])
        self._heads.put(key, heads, _HEAD_WEIGHT_BYTES * len(heads))

    # Pivots

    def find_pivots(self, conversation: Conversation) -> list[Pivot]:
        """Every pivot in memory whose key is on the chain."""
        return [self._pivots.get(key) for key in conversation.chain if key in self._pivots]  # type: ignore[misc]

    async def load_pivots(
        self, owner: str, conversation: Conversation, branch: str, named: str | None
    ) -> None:
        """Brings the chain's newest stored pivot, once for each branch, and the one that a head names into
        memory.
        """
        if self._asked_pivots.get((owner, branch)) != self._pivots.evictions:
            evictions = self._pivots.evictions
            await self._load_newest_pivot(owner, conversation)
            self._asked_pivots.put((owner, branch), evictions, _ASKED_WEIGHT_BYTES)
        if named:
            await self.load_pivot(owner, named)

    async def load_pivot(self, owner: str, key: str) -> Pivot | None:
        """The one of this key, of memory or of the store."""
        if bytes.fromhex(key) not in self._pivots:
            pivot = await self._load(Pivot, owner, f"pivot:{key}")
            if pivot is not None and pivot.key == key:
                self._remember_pivot(pivot)
        return self.read_pivot(key)

    async def _load_newest_pivot(self, owner: str, conversation: Conversation) -> None:
        found = await self._store.read_first(
            [f"pivot:{key.hex()}" for key in reversed(conversation.chain[1:])]
        )
        pivot = parse_record(Pivot, owner, found[1]) if found else None
        if pivot is not None and found is not None and found[0] == f"pivot:{pivot.key}":
            self._remember_pivot(pivot)

    def read_pivot(self, key: str | None) -> Pivot | None:
        return self._pivots.get(bytes.fromhex(key)) if key else None

    async def save_pivot(self, pivot: Pivot) -> None:
        """Durable when this returns. Raises StoreError; then nobody may use the pivot."""
        await self._store.write_durably(
            f"pivot:{pivot.key}", render_record(pivot.owner, pivot), keep_seconds=self._keep_seconds
        )
        self._note_written(f"pivot:{pivot.key}")
        self._remember_pivot(pivot)

    def put_in_force(self, branch: str, pivot: Pivot, head: Head | None) -> None:
        """A pivot made by hand applies from the branch's next request on, whatever the lines say.

        head: the newest one that the pivot was made for; it remembers that over a restart.
        """
        self._by_hand.put(branch, pivot, _pivot_weight(pivot))
        if head is not None:
            self.save_head(_with_pivot(head, pivot), is_worth_writing=True)

    def read_in_force(self, branch: str, conversation: Conversation, head: Head | None) -> Head | None:
        """The head, with a pivot made by hand where it does not know of it yet."""
        made = self._by_hand.peek(branch)
        if made is None or head is None or not is_on_chain(conversation, made.key, made.covers):
            return head
        known = self.read_pivot(head.pivot)
        if known is not None and known.covers >= made.covers:
            self._by_hand.pop(branch)
            return head
        return _with_pivot(head, made)

    def refresh(self, pivot: Pivot | None, batches: Sequence[Batch]) -> None:
        """State not used for `retention` is dropped; what is in force is used. Written anew once a day."""
        if pivot is not None and self._is_stale(f"pivot:{pivot.key}"):
            self._write(pivot.owner, f"pivot:{pivot.key}", pivot)
        for batch in batches:
            if self._is_stale(f"batch:{batch.key}"):
                self._write(batch.owner, f"batch:{batch.key}", batch)

    def _is_stale(self, key: str) -> bool:
        written = self._refreshed.get(key)
        if written is not None and not self._is_old(written):
            return False
        self._note_written(key)
        return True

    def _is_old(self, written_seconds: float) -> bool:
        return time.monotonic() - written_seconds >= min(_REFRESH_SECONDS, self._keep_seconds / 4)

    def _note_written(self, key: str) -> None:
        self._refreshed.put(key, time.monotonic(), _ASKED_WEIGHT_BYTES)

    def _remember_pivot(self, pivot: Pivot) -> None:
        self._pivots.put(bytes.fromhex(pivot.key), pivot, _pivot_weight(pivot))

    # Outlines: rarely asked for, and kept in the store alone.

    async def find_outlines(self, owner: str, keys: Sequence[str]) -> ResultHashesRecord | None:
        """Those of the first key that has any."""
        found = await self._store.read_first([f"outline:{key}" for key in keys]) if keys else None
        outlines = parse_record(ResultHashesRecord, owner, found[1]) if found else None
        if outlines is None or found is None or found[0] != f"outline:{outlines.key}":
            return None
        return outlines

    def save_outlines(self, outlines: ResultHashesRecord) -> None:
        self._write(outlines.owner, f"outline:{outlines.key}", outlines)

    # Mark batches

    async def load_batches(self, owner: str, keys: Sequence[str]) -> None:
        for key in keys:
            if bytes.fromhex(key) in self._batches:
                continue
            batch = await self._load(Batch, owner, f"batch:{key}")
            if batch is not None and batch.key == key:
                self._remember_batch(batch)

    def read_batches(self, keys: Sequence[str]) -> list[Batch] | None:
        """All of them, or None if one is not in memory."""
        batches = [self._batches.get(bytes.fromhex(key)) for key in keys]
        found = [batch for batch in batches if batch is not None]
        return found if len(found) == len(batches) else None

    def save_batch(self, batch: Batch) -> None:
        self._remember_batch(batch)
        self._note_written(f"batch:{batch.key}")
        self._write(batch.owner, f"batch:{batch.key}", batch)

    def _remember_batch(self, batch: Batch) -> None:
        weight = _RECORD_WEIGHT_BYTES + 64 * len(batch.marks)
        self._batches.put(bytes.fromhex(batch.key), batch, weight)

    # Markers

    def save_marker(self, marker: Marker) -> None:
        self._write(marker.owner, f"marker:{marker.key}", marker)

    def leave_marker(self, marker: Marker) -> None:
        """For the chain's next request, in this process or in a later one."""
        self.save_marker(marker)
        self._waiting.put(marker.key, marker, _marker_weight(marker))
        for head in self._heads.get(bytes.fromhex(marker.key)) or ():
            self.save_head(head, is_worth_writing=True)

    def take_marker(self, key: str) -> Marker | None:
        """One that waits for its chain's next request; whoever takes it sees to it."""
        marker = self._waiting.pop(key)
        if marker is not None:
            self.drop_marker(key)
        return marker

    def drop_marker(self, key: str) -> None:
        self._store.delete(f"marker:{key}")

    # Commands that were carried out

    async def load_folded(self, owner: str, key: str) -> Folded | None:
        """key: the chain of the request that the command was."""
        folded: Folded | None = await self._load(Folded, owner, f"command:{key}")
        return folded

    def save_folded(self, owner: str, key: str, folded: Folded) -> None:
        self._write(owner, f"command:{key}", folded)

    # Calibrations

    def read_calibration(self, owner: str, meter: Meter) -> Calibration:
        return self._calibrations.get((owner, meter)) or Calibration()

    async def load_calibration(self, owner: str, meter: Meter) -> Calibration:
        """The stored one; asks the store once for each."""
        known = self._calibrations.get((owner, meter))
        if known is None:
            known = (
                await self._load(Calibration, owner, _record_key("calibration", owner, *meter))
                or Calibration()
            )
            self._remember_calibration(owner, meter, known)
        return known

    def save_calibration(self, owner: str, meter: Meter, calibration: Calibration) -> None:
        self._remember_calibration(owner, meter, calibration)
        self._write(owner, _record_key("calibration", owner, *meter), calibration)

    def _remember_calibration(self, owner: str, meter: Meter, calibration: Calibration) -> None:
        self._calibrations.put((owner, meter), calibration, _RECORD_WEIGHT_BYTES + len(meter.model))

    # Learned limits

    def read_learned(self, owner: str, upstream: str, model: str) -> Learned | None:
        """From memory; None where the store has not been asked."""
        return self._learned.get((owner, upstream, model))

    async def load_learned(self, owner: str, upstream: str, model: str) -> Learned:
        """The stored one; asks the store once per (tenant, upstream, model)."""
        key = (owner, upstream, model)
        known = self._learned.get(key)
        if known is None:
            stored = await self._load(Learned, owner, _record_key("learned", *key))
            # Something may have been learned while the store was asked.
            known = self._learned.get(key) or stored or Learned(owner=owner)
            self._learned.put(key, known, _RECORD_WEIGHT_BYTES + len(model))
        return known

    def save_learned(self, upstream: str, model: str, learned: Learned) -> None:
        key = (learned.owner, upstream, model)
        self._learned.put(key, learned, _RECORD_WEIGHT_BYTES + len(model))
        self._write(learned.owner, _record_key("learned", *key), learned)

    async def _load(self, kind: type, owner: str, key: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
        data = await self._store.read(key)
        return parse_record(kind, owner, data) if data is not None else None

    def _write(self, owner: str, key: str, record: object) -> None:
        self._store.write(key, render_record(owner, record), keep_seconds=self._keep_seconds)


def _with_pivot(head: Head, pivot: Pivot) -> Head:
    """Its usage told of another array, so it tells nothing any more."""
    return replace(head, pivot=pivot.key, prompt_tokens=0, output_tokens=0)


def _pivot_weight(pivot: Pivot) -> int:
    return _RECORD_WEIGHT_BYTES + 4 * len(pivot.summary)


def _marker_weight(marker: Marker) -> int:
    return _ASKED_WEIGHT_BYTES + 4 * len(marker.instructions)


def _record_key(kind: str, *place: str) -> str:
    parts = [part.encode() for part in place]
    encoded = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return f"{kind}:{hashlib.sha256(encoded).hexdigest()}"
