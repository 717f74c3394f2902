"""Events for operators and hooks, and the bus that carries them inside this process.

An event holds ids, names of tenants and numbers, and no text of a conversation. `compact_boundary` has
exactly the form of docs/sources.md, 003, and `session.compacted` the form of 001; the others are ours.
`session_id` is the id of the conversation.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import msgspec

from gateway.core.compaction.request import CompactionReason, CompactionTrigger, SummaryKind

# Compactions are rare. This many events are hours of them, and 100 KB at most.
_MAX_WAITING: Final = 256
# Of events that were rendered before: each second one may hold hundreds of conversations.
_MAX_WAITING_BYTES: Final = 4 << 20


class CompactMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """pre_tokens: size of the conversation before."""

    trigger: CompactionTrigger
    pre_tokens: int


class CompactBoundary(msgspec.Struct, frozen=True, kw_only=True):
    """Old turns have been replaced."""

    type: Literal["system"] = "system"
    subtype: Literal["compact_boundary"] = "compact_boundary"
    compact_metadata: CompactMetadata
    uuid: str
    session_id: str


class SessionCompacted(msgspec.Struct, frozen=True, kw_only=True):
    """The same event with every detail. covers: number of messages up to the end of the summary.

    post_tokens: an estimate; None if it is not known.
    """

    type: Literal["session.compacted"] = "session.compacted"
    # The source spells it like this.
    session_id: str = msgspec.field(name="sessionID")
    tenant: str
    kind: SummaryKind
    trigger: CompactionTrigger
    reason: CompactionReason
    pre_tokens: int
    post_tokens: int | None
    covers: int


class CompactionFailed(msgspec.Struct, frozen=True, kw_only=True):
    """No summary was stored. reason: one of a few short ones."""

    type: Literal["compaction_failed"] = "compaction_failed"
    session_id: str
    tenant: str
    kind: SummaryKind
    trigger: CompactionTrigger
    pre_tokens: int
    reason: str


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """marks: number of messages that are sent shortened from now on."""

    type: Literal["pruned"] = "pruned"
    session_id: str
    tenant: str
    marks: int
    saved_tokens: int


class Overflowed(msgspec.Struct, frozen=True, kw_only=True):
    """Upstream said that a request is too large, or (kind `truncation`) silently left out a part of it.

    sent_tokens: our estimate. context, input, used: as upstream says, or None.
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
    """A slow subscriber missed this many events before the next one."""

    type: Literal["lost"] = "lost"
    count: int


class Relayed(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the bytes that it was rendered to before, here or in another process."""

    name: str
    data: bytes


Event = CompactBoundary | SessionCompacted | CompactionFailed | Pruned | Overflowed | Lost | Relayed


def make_boundary(session_id: str, trigger: CompactionTrigger, pre_tokens: int) -> CompactBoundary:
    """With a fresh id."""
    metadata = CompactMetadata(trigger=trigger, pre_tokens=pre_tokens)
    return CompactBoundary(compact_metadata=metadata, uuid=str(uuid.uuid4()), session_id=session_id)


def event_name(event: Event) -> str:
    """The name that subscribers filter by."""
    if isinstance(event, Relayed):
        return event.name
    return event.subtype if isinstance(event, CompactBoundary) else event.type


def render_event(event: Event) -> bytes:
    return event.data if isinstance(event, Relayed) else msgspec.json.encode(event)


class Subscription:
    """The events that wait for one subscriber. The oldest are dropped if it is too slow.

    watches: whether it shows what conversations do.
    """

    def __init__(self, *, watches: bool = False) -> None:
        self.watches = watches
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        self._has_events = asyncio.Event()

    def put(self, event: Event) -> None:
        size_bytes = _weigh(event)
        while self._waiting and (
            len(self._waiting) >= _MAX_WAITING or self._waiting_bytes + size_bytes > _MAX_WAITING_BYTES
        ):
            self._pop()
            self._lost += 1
        self._waiting.append(event)
        self._waiting_bytes += size_bytes
        self._has_events.set()

    async def next(self) -> Event:
        """Waits for an event. `Lost` comes before the first event after dropped ones."""
        await self._has_events.wait()
        if self._lost:
            lost, self._lost = Lost(count=self._lost), 0
            return lost
        event = self._pop()
        if not self._waiting:
            self._has_events.clear()
        return event

    def _pop(self) -> Event:
        event = self._waiting.popleft()
        self._waiting_bytes -= _weigh(event)
        return event

    def take(self) -> list[Event]:
        """Everything that waits now."""
        events = [*self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        self._has_events.clear()
        return events


def _weigh(event: Event) -> int:
    return len(event.data) if isinstance(event, Relayed) else 0


class Bus:
    """Publishing never waits."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    @property
    def has_watchers(self) -> bool:
        return any(subscription.watches for subscription in self._subscriptions)

    def publish_to_watchers(self, event: Event) -> None:
        for subscription in self._subscriptions:
            if subscription.watches:
                subscription.put(event)

    def publish(self, event: Event) -> None:
        for subscription in self._subscriptions:
            subscription.put(event)

    @contextmanager
    def subscribe(self, *, watches: bool = False) -> Iterator[Subscription]:
        """The subscription gets what is published while this is open. watches: also what is published to
        watchers.
        """
        subscription = Subscription(watches=watches)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
