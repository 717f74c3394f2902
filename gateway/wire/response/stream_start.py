"""Finds out whether a stream begins with a reply or with a refusal.

Until that is decided, nothing has to be sent downstream, and the request can be tried again. The caller keeps
the bytes.
"""

from dataclasses import dataclass
from typing import Final

from gateway.core.refusal.overflow import Refusal
from gateway.wire.response.content import has_content, is_known_empty, list_finish_reasons
from gateway.wire.response.events import ResponseEvents
from gateway.wire.response.refusal import (
    parse_event_documents,
    parse_event_refusal,
    parse_refusal,
)
from gateway.wire.sse import SseEvent

# More than any provider sends before the first content. The client does not wait for more.
MAX_START_BYTES = 64 * 1024
# After this many events of unknown kinds, the stream is not held back any longer.
_MAX_UNKNOWN_EVENTS = 4


@dataclass(frozen=True, slots=True)
class Undecided:
    """So far only events without content, comments and pings."""


@dataclass(frozen=True, slots=True)
class Started:
    """The reply has begun, or the stream is of an unknown kind. It can be sent downstream."""


@dataclass(frozen=True, slots=True)
class Refused:
    refusal: Refusal


Verdict = Undecided | Started | Refused
PENDING: Final = Undecided()
STARTED: Final = Started()


class StreamStart:
    """Is fed the decoded bytes, cut anywhere. Never raises."""

    def __init__(self) -> None:
        self._events = ResponseEvents("text/event-stream", "")
        self._room_bytes = MAX_START_BYTES
        self._unknown_events = 0
        self._verdict: Verdict = PENDING

    def feed(self, chunk: bytes) -> Verdict:
        """Once the verdict is not `PENDING` it never changes."""
        if self._verdict is PENDING:
            start = chunk[: self._room_bytes]
            self._room_bytes -= len(start)
            self._judge(self._events.feed(start))
            if self._verdict is PENDING and self._room_bytes == 0:
                self._verdict = STARTED
        return self._verdict

    def finish(self) -> Verdict:
        """After the last byte; never `PENDING`. A body that is not a stream is parsed as a whole."""
        if self._verdict is PENDING:
            self._judge(self._events.finish())
        if self._verdict is PENDING:
            self._verdict = STARTED
        return self._verdict

    def _judge(self, events: list[SseEvent]) -> None:
        for event in events:
            self._verdict = self._judge_event(event)
            if self._verdict is not PENDING:
                return

    def _judge_event(self, event: SseEvent) -> Verdict:
        if event.name == "":
            refusal = parse_refusal(200, event.data)
        else:
            refusal = parse_event_refusal(event)
        if refusal is not None:
            return Refused(refusal)
        documents = parse_event_documents(event)
        if any(has_content(document) or list_finish_reasons(document) for document in documents):
            return STARTED
        is_empty = bool(documents) and all(map(is_known_empty, documents))
        if is_empty or event.name == "ping" or not event.data.strip():
            return PENDING
        if event.data.strip() == b"[DONE]":
            return STARTED
        self._unknown_events += 1
        return STARTED if self._unknown_events >= _MAX_UNKNOWN_EVENTS else PENDING
