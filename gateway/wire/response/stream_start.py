"""How does a stream begin: with an answer, or with a refusal?

Until one of the two is sure, nothing need be sent downstream, and the request may be tried again. Knows
nothing of why it is asked, and does not keep the bytes.
"""

from dataclasses import dataclass
from typing import Final

from gateway.core.refusal.overflow import Refusal
from gateway.wire.response.content import has_content, is_silent, list_finish_reasons
from gateway.wire.response.events import ResponseEvents
from gateway.wire.response.refusal import (
    parse_event_documents,
    parse_event_refusal,
    parse_full_window,
    parse_refusal,
)
from gateway.wire.sse import SseEvent

# More than any provider sends before the first content; a client must not wait for more.
MAX_START_BYTES = 64 * 1024
# Events of kinds that we do not know: a stream of them is not ours to judge, and must not be held back.
_MOST_UNKNOWN_EVENTS = 4


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing is decided: preambles, comments, pings."""


@dataclass(frozen=True, slots=True)
class Started:
    """The model answers, or it cannot be told; what comes now is downstream's."""


@dataclass(frozen=True, slots=True)
class Refused:
    refusal: Refusal


Verdict = Undecided | Started | Refused
PENDING: Final = Undecided()
STARTED: Final = Started()


class StreamStart:
    """Fed with the decoded bytes as they come; how they are cut never matters. Never raises."""

    def __init__(self) -> None:
        self._events = ResponseEvents("text/event-stream", "")
        self._room_bytes = MAX_START_BYTES
        self._unknown_events = 0
        self._verdict: Verdict = PENDING

    def feed(self, chunk: bytes) -> Verdict:
        """Once it is not `Pending` it never changes."""
        if self._verdict is PENDING:
            start = chunk[: self._room_bytes]
            self._room_bytes -= len(start)
            self._judge(self._events.feed(start))
            if self._verdict is PENDING and self._room_bytes == 0:
                self._verdict = STARTED
        return self._verdict

    def finish(self) -> Verdict:
        """After the last byte: never `Pending`. A body that is no stream after all is read as a whole."""
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
            refusal = parse_event_refusal(event) or parse_full_window(event)
        if refusal is not None:
            return Refused(refusal)
        documents = parse_event_documents(event)
        if any(has_content(document) or list_finish_reasons(document) for document in documents):
            return STARTED
        if event.name == "ping" or (documents and all(map(is_silent, documents))) or not event.data.strip():
            return PENDING
        if event.data.strip() == b"[DONE]":
            return STARTED
        self._unknown_events += 1
        return STARTED if self._unknown_events >= _MOST_UNKNOWN_EVENTS else PENDING
