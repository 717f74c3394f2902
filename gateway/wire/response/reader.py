"""Watches a copy of a chat answer go by: how many tokens, why it ended, whether it failed.

The answer itself is somebody else's business; nothing here may slow it down or raise.
"""

from collections.abc import Callable
from functools import cached_property

import msgspec

from gateway.core.sizing.usage import Usage
from gateway.wire.response.events import ResponseEvents
from gateway.wire.response.facts import ResponseFacts, read_plain_answer
from gateway.wire.sse import SseEvent

# Parsing in batches costs a third of parsing at every read, and nothing of it is due before the end.
BATCH_BYTES = 64 * 1024


class Reading(msgspec.Struct, frozen=True):
    """`is_complete`: the stream came to its own end, or the one JSON value of the body is whole."""

    usage: Usage | None
    finish_reason: str | None
    has_error: bool
    is_complete: bool


class ResponseReader:
    """Fed what goes downstream, as it goes: streamed or not, compressed or not.

    tell: told each event besides.
    """

    def __init__(
        self, content_type: str, content_encoding: str, tell: Callable[[SseEvent], None] | None = None
    ) -> None:
        self._content = content_type, content_encoding
        self._tell = tell
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        # Uncoded, and all that came so far is pending.
        self._is_plain = not content_encoding

    # Both are made at first use: most whole answers are read without.

    @cached_property
    def _events(self) -> ResponseEvents:
        return ResponseEvents(*self._content)

    @cached_property
    def _facts(self) -> ResponseFacts:
        return ResponseFacts()

    def feed(self, chunk: bytes) -> None:
        """Hot: once per read."""
        self._pending.append(chunk)
        self._pending_bytes += len(chunk)
        if self._pending_bytes >= BATCH_BYTES:
            self._note_pending()

    def read(self) -> Reading:
        """After the last chunk, also of an answer that broke off."""
        if self._is_plain and self._pending and self._pending[0].startswith(b"{"):
            # The usual whole answer: nothing to decode, to split or to sniff.
            body = b"".join(self._pending)
            plain = read_plain_answer(body) if self._tell is None else None
            if plain is not None:
                return Reading(plain.usage, plain.finish_reason, has_error=False, is_complete=True)
            self._note([SseEvent("", body)])
            return self._render(self._facts.has_document)
        self._note_pending()
        self._note(self._events.finish())
        return self._render(is_complete(self._events, self._facts))

    def _render(self, is_whole: bool) -> Reading:
        facts = self._facts
        return Reading(facts.usage, facts.finish_reason, facts.has_error, is_whole)

    def _note_pending(self) -> None:
        self._is_plain = False
        batch = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._note(self._events.feed(batch))

    def _note(self, events: list[SseEvent]) -> None:
        for event in events:
            self._facts.note(event)
            if self._tell is not None:
                self._tell(event)


def is_complete(events: ResponseEvents, facts: ResponseFacts) -> bool:
    """After the last event."""
    return facts.has_ended if events.is_stream else facts.has_document
