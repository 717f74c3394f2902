"""What happened, as values that may leave the house: ids, names of tenants, numbers. Never a word of anybody.

`compact_boundary` is document 003 §7 to the letter, `session.compacted` is document 001's; the others are
ours. `session_id` is the conversation's id.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import msgspec

from gateway.core.compaction.request import CompactionTrigger

SummaryKind = Literal["summary", "digest"]


class CompactMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """pre_tokens: what the conversation held before."""

    trigger: CompactionTrigger
    pre_tokens: int


class CompactBoundary(msgspec.Struct, frozen=True, kw_only=True):
    """Old turns have been replaced."""

    type: Literal["system"] = "system"
    subtype: Literal["compact_boundary"] = "compact_boundary"
    compact_metadata: CompactMetadata
    uuid: str
    session_id: str


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The same with everything that is known. covers: messages up to where the summary ends."""

    type: Literal["session.compacted"] = "session.compacted"
    # As its source spells it.
    session_id: str = msgspec.field(name="sessionID")
    tenant: str
    kind: SummaryKind
    trigger: CompactionTrigger
    pre_tokens: int
    post_tokens: int
    covers: int


class CompactionFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was stored. reason: one of a few short ones."""

    type: Literal["compaction_failed"] = "compaction_failed"
    session_id: str
    tenant: str
    kind: SummaryKind
    trigger: CompactionTrigger
    pre_tokens: int
    reason: str


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """marks: messages that are sent shortened from now on."""

    type: Literal["pruned"] = "pruned"
    session_id: str
    tenant: str
    marks: int
    saved_tokens: int


class Overflowed(msgspec.Struct, frozen=True, kw_only=True):
    """Upstream called a request too large, or (kind `truncation`) left out a part of it in silence.

    sent_tokens: our estimate. context, input, used: what upstream told, None where it did not.
    """

    type: Literal["overflow"] = "overflow"
    session_id: str
    tenant: str
    kind: str
    retried: bool
    sent_tokens: int
    context: int | None = None
    input: int | None = None
    used: int | None = None


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """To a subscriber that was too slow: so many events before the next one are gone."""

    type: Literal["lost"] = "lost"
    count: int


Event = CompactBoundary | Compacted | CompactionFailed | Pruned | Overflowed | Lost


def make_boundary(session_id: str, trigger: CompactionTrigger, pre_tokens: int) -> CompactBoundary:
    """With a fresh id."""
    metadata = CompactMetadata(trigger=trigger, pre_tokens=pre_tokens)
    return CompactBoundary(compact_metadata=metadata, uuid=str(uuid.uuid4()), session_id=session_id)


def read_name(event: Event) -> str:
    """What a subscriber chooses by."""
    return event.subtype if isinstance(event, CompactBoundary) else event.type


def render_event(event: Event) -> bytes:
    """As JSON."""
    return msgspec.json.encode(event)


# JOINED: Carries events to whoever subscribed, inside this process. Publishing never waits and

# Compactions are rare: this many are hours of them, and 100 KB at most.
_QUEUE: Final = 256


class Subscription:
    """One subscriber's queue."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[Event] = deque()
        self._lost = 0
        self._something = asyncio.Event()

    def put(self, event: Event) -> None:
        if len(self._waiting) >= self._most:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(event)
        self._something.set()

    async def next(self) -> Event:
        """Waits for one; what was lost before it is told first."""
        await self._something.wait()
        if self._lost:
            lost, self._lost = Lost(count=self._lost), 0
            return lost
        event = self._waiting.popleft()
        if not self._waiting:
            self._something.clear()
        return event


class Bus:
    def __init__(self, queue: int = _QUEUE) -> None:
        """queue: events that wait for one subscriber at most."""
        self._queue = queue
        self._subscriptions: set[Subscription] = set()

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    def publish(self, event: Event) -> None:
        for subscription in self._subscriptions:
            subscription.put(event)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Everything that is published while this is open."""
        subscription = Subscription(self._queue)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
