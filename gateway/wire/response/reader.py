"""Watches a copy of a response on its way to the client: how many tokens, why it ended, whether it failed.

Nothing here changes the response, delays it or raises.
"""

from collections.abc import Callable

import msgspec

from gateway.core.sizing.usage import Usage
from gateway.wire.response.events import ResponseEvents
from gateway.wire.response.facts import ResponseFacts
from gateway.wire.sse import SseEvent

# Parsing in batches costs half of parsing at every read, and the facts are needed only at the end. Larger
# batches cost the same, hold more memory for each stream, and many streams that fill theirs at the same time
# hold up the event loop: 300 batches of 64 KB take half a second.
BATCH_BYTES = 8 * 1024
# With one of these a response is complete that later requests may name.
_LAST_EVENTS = (b"message_stop", b"response.completed", b"response.incomplete")
# A stream of no known kind: no provider sends so many. Each takes longer than a usual event of its length.
_MAX_UNKNOWN_EVENTS = 1_000
# Of a response whose client hangs up, at most this many steps are still decoded, because nothing waits then.
_LAST_STEPS = 16


class Reading(msgspec.Struct, frozen=True):
    """The facts of one whole response."""

    usage: Usage | None
    finish_reason: str | None
    has_error: bool
    # The stream reached its own end, or the body is one whole JSON value.
    is_complete: bool


class ResponseReader:
    """Is fed the chunks that go to the client: streamed or not, compressed or not.

    on_event: is called with each event, too.
    """

    def __init__(
        self, content_type: str, content_encoding: str, on_event: Callable[[SseEvent], None] | None = None
    ) -> None:
        self._events = ResponseEvents(content_type, content_encoding)
        self._facts = ResponseFacts()
        self._is_encoded = content_encoding not in ("", "identity")
        self._on_event = on_event
        # Events in a row without a JSON object.
        self._unknown = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    @property
    def is_behind(self) -> bool:
        """Many bytes are read in steps: while this is true, call `catch_up` before the next `feed`.

        Each step is short, so that the caller can let others in between.
        """
        return self._events.is_behind

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        return self._pending_bytes + self._events.held_bytes

    def feed(self, chunk: bytes) -> bool:
        """Called for every read. True if it has ended a batch: only then it may be behind, or hold more."""
        self._pending.append(chunk)
        self._pending_bytes += len(chunk)
        is_batch = self._pending_bytes >= BATCH_BYTES or (self._on_event is not None and self._may_end(chunk))
        if not is_batch or self._events.is_behind:
            return False
        self._note_pending()
        return True

    def _may_end(self, chunk: bytes) -> bool:
        """Whether the response may be complete, so that the client may name it at once. The stream may go on
        for a while without another event. In a compressed one this cannot be seen.
        """
        return self._is_encoded or any(name in chunk for name in _LAST_EVENTS)

    def catch_up(self) -> None:
        """Takes one step."""
        self._note(self._events.catch_up())

    def flush(self) -> bool:
        """After the last chunk, if there is time to catch up before `finish`. True if it is behind then."""
        if self._pending and not self._events.is_behind:
            self._note_pending()
        return self._events.is_behind

    def give_up(self) -> None:
        """Reads no more; `finish` then tells what was found so far."""
        self._pending.clear()
        self._pending_bytes = 0
        self._events.give_up()

    def finish(self) -> Reading:
        """After the last chunk, also of a response that broke off."""
        if self.flush():
            for _ in range(_LAST_STEPS):
                self.catch_up()
            if self.is_behind:
                self.give_up()
        self._note(self._events.finish())
        facts = self._facts
        return Reading(facts.usage, facts.finish_reason, facts.has_error, is_complete(self._events, facts))

    def _note_pending(self) -> None:
        batch = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._note(self._events.feed(batch))

    def _note(self, events: list[SseEvent]) -> None:
        for event in events:
            self._unknown = 0 if self._facts.note(event) else self._unknown + 1
            if self._unknown > _MAX_UNKNOWN_EVENTS:
                self.give_up()
                return
            if self._on_event is not None:
                self._on_event(event)


def is_complete(events: ResponseEvents, facts: ResponseFacts) -> bool:
    """Asked after the last event."""
    return facts.has_ended if events.is_stream else facts.has_document
