"""Reads a response while it arrives, streamed or not, compressed or not, cut anywhere.

Three readers share the events: of a copy on its way to the client, of the start of a stream before any of it
is sent, and of the responses to our own requests. None of them raises, and the memory of each is bounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.core.refusal import Refusal
from gateway.core.sizing.usage import Usage
from gateway.wire.content_encoding import STEP_BYTES, DecodeError, make_decoder
from gateway.wire.reading import (
    OnEvent,
    Piece,
    ResponseFacts,
    has_content,
    is_known_empty,
    list_finish_reasons,
    read_event,
    read_piece,
)
from gateway.wire.refusal import parse_event_refusal
from gateway.wire.sse import EventSplitter, SseEvent

# A body that is one JSON value and larger than this is not parsed.
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
# Parsing in batches costs half of parsing at every read, and the facts are needed only at the end. Larger
# batches cost the same, hold more memory for each stream, and many streams that fill theirs at the same time
# hold up the event loop: 300 batches of 64 KB take half a second.
BATCH_BYTES: Final = 8 * 1024
# More than any provider sends before the first content. The client does not wait for more.
MAX_START_BYTES: Final = 64 * 1024
# Far more than any policy allows for a summary. It bounds the memory that a model in a loop can fill.
MAX_TEXT_CHARACTERS: Final = 1_000_000
# What decodes to more than this for each of its bytes, and to more than nearly every response, is a bomb.
# Streams of short events are compressed to a twentieth.
_MAX_RATIO: Final = 50
_FREE_WORK_BYTES: Final = 4 * 1024 * 1024
_BLANK: Final = b" \t\r\n"
_STREAM_STARTS: Final = (b"data:", b"event:", b":", b"id:", b"retry:")
_LONGEST_START: Final = max(map(len, _STREAM_STARTS))
# The steps of decoding that make one step of reading; many of them give nothing.
_MAX_PIECES: Final = 64
# With one of these a response is complete that later requests may name.
_LAST_EVENTS: Final = (b"message_stop", b"response.completed", b"response.incomplete")
# A stream of no known kind: no provider sends so many. Each takes longer than a usual event of its length.
_MAX_UNKNOWN_EVENTS: Final = 1_000
# After this many events of unknown kinds at its start, a stream is not held back any longer.
_MAX_UNKNOWN_START: Final = 4
# Of a response whose client hangs up, at most this many steps are still decoded, because nothing waits then.
_LAST_STEPS: Final = 16


class ResponseEvents:
    """is_stream: the body is a stream of events.

    Its memory is bounded. Never raises: after bytes that cannot be decoded there are no more events.

    Many bytes are decoded and parsed in steps. While `is_behind`, call `catch_up` before anything else.
    """

    def __init__(self, content_type: str, content_encoding: str) -> None:
        self._says_stream = "event-stream" in content_type.lower()
        self._decoder = make_decoder(content_encoding)
        self._steps: Iterator[bytes] | None = None
        self._encoded_bytes = 0
        self._start: bytes | None = b""  # until it is known whether the body is a stream
        self._splitter: EventSplitter | None = None
        self._body = bytearray()
        self.is_stream = False

    @property
    def is_behind(self) -> bool:
        """Whether a part of what was fed has not been decoded yet."""
        return self._steps is not None

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        held = len(self._body)
        if self._splitter is not None:
            held += self._splitter.held_bytes
        return held + (self._decoder.held_bytes if self._decoder is not None else 0)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that come of the chunk, or of a first step of it. Compressed, it comes to its first step
        later: even that may take some 30 ms.
        """
        if self._decoder is None:
            return []
        is_plain = self._decoder.is_identity
        if is_plain and len(chunk) <= STEP_BYTES:
            return self._feed_plain(chunk)
        self._encoded_bytes += len(chunk)
        self._steps = self._decoder.feed(chunk)
        return self.catch_up() if is_plain else []

    def catch_up(self) -> list[SseEvent]:
        """The events of the next step."""
        if self._steps is None or self._decoder is None:
            return []
        try:
            # Most steps are smaller than their bound.
            plain, size = [], 0
            for piece in self._steps:
                plain.append(piece)
                size += len(piece)
                if size >= STEP_BYTES or len(plain) >= _MAX_PIECES:
                    break
            else:
                self._steps = None
        except DecodeError:
            self._steps = self._decoder = None
            return []
        if self._decoder.work_bytes > _FREE_WORK_BYTES + _MAX_RATIO * self._encoded_bytes:
            self.give_up()
            return []
        return self._feed_plain(b"".join(plain))

    def give_up(self) -> None:
        """Drops everything that is held. There are no more events."""
        self._steps = self._decoder = self._splitter = None
        self._body = bytearray()
        self._start = None

    def _feed_plain(self, plain: bytes) -> list[SseEvent]:
        if self._start is None:
            return self._add(plain)
        # Some servers keep a connection alive with blanks before the body. A BOM is skipped, too.
        self._start = (self._start + plain).lstrip(b"\xef\xbb\xbf" + _BLANK)
        return self._begin(self._start) if len(self._start) >= _LONGEST_START else []

    def finish(self) -> list[SseEvent]:
        """The remaining events. A whole body that is not a stream is one event without a name."""
        events = self._begin(self._start) if self._start is not None else []
        if self._splitter is not None:
            return events + self._splitter.finish()
        return [SseEvent("", bytes(self._body))] if self._body else []

    def _begin(self, start: bytes) -> list[SseEvent]:
        """The bytes decide what it is: some servers stream as application/json, or send a JSON error as an
        event stream.
        """
        self._start = None
        is_json = start.startswith((b"{", b"["))
        if not is_json and (self._says_stream or start.startswith(_STREAM_STARTS)):
            self._splitter = EventSplitter()
            self.is_stream = True
        return self._add(start)

    def _add(self, plain: bytes) -> list[SseEvent]:
        if self._splitter is not None:
            return self._splitter.feed(plain)
        if len(self._body) + len(plain) > MAX_BODY_BYTES:
            self.give_up()
        else:
            self._body += plain
        return []


class _Reader:
    """What the readers of whole responses share."""

    def __init__(self, content_type: str, content_encoding: str) -> None:
        self._events = ResponseEvents(content_type, content_encoding)
        self._facts = ResponseFacts()

    @property
    def is_behind(self) -> bool:
        """Many bytes are read in steps: while this is true, call `catch_up` before the next `feed`.

        Each step is short, so that the caller can let others in between.
        """
        return self._events.is_behind

    def catch_up(self) -> None:
        """Takes one step."""
        self._note(self._events.catch_up())

    def _note(self, events: list[SseEvent]) -> None:
        raise NotImplementedError

    def _is_complete(self) -> bool:
        """Asked after the last event."""
        return self._facts.has_ended if self._events.is_stream else self._facts.has_document


class Reading(msgspec.Struct, frozen=True):
    """The facts of one whole response."""

    usage: Usage | None
    finish_reason: str | None
    has_error: bool
    # The stream reached its own end, or the body is one whole JSON value.
    is_complete: bool


class ResponseReader(_Reader):
    """Is fed the chunks that go to the client: streamed or not, compressed or not."""

    def __init__(self, content_type: str, content_encoding: str, on_event: OnEvent | None = None) -> None:
        super().__init__(content_type, content_encoding)
        self._is_encoded = content_encoding not in ("", "identity")
        self._on_event = on_event
        # Events in a row without a JSON object.
        self._unknown = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0

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
        return Reading(facts.usage, facts.finish_reason, facts.has_error, self._is_complete())

    def _note_pending(self) -> None:
        batch = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._note(self._events.feed(batch))

    def _note(self, events: list[SseEvent]) -> None:
        for event in events:
            documents = self._facts.note(event)
            self._unknown = 0 if documents else self._unknown + 1
            if self._unknown > _MAX_UNKNOWN_EVENTS:
                self.give_up()
                return
            if self._on_event is not None:
                self._on_event(event, documents)


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
        refusal = parse_event_refusal(event)
        if refusal is not None:
            return Refused(refusal)
        documents = read_event(event)
        if any(has_content(document) or list_finish_reasons(document) for document in documents):
            return STARTED
        is_empty = bool(documents) and all(map(is_known_empty, documents))
        if is_empty or event.name == "ping" or not event.data.strip():
            return PENDING
        if event.data.strip() == b"[DONE]":
            return STARTED
        self._unknown_events += 1
        return STARTED if self._unknown_events >= _MAX_UNKNOWN_START else PENDING


class SummaryResponse(Reading, frozen=True):
    """has_error: also if the text reached the bound and was cut there."""

    text: str
    has_tool_calls: bool


class SummaryReader(_Reader):
    """Of our own requests: the text of the model's reply. Whether it is a good summary, `core` decides."""

    def __init__(self, content_type: str, content_encoding: str) -> None:
        super().__init__(content_type, content_encoding)
        self._texts: list[str] = []
        self._room = MAX_TEXT_CHARACTERS
        self._has_tool_calls = False

    @property
    def is_over(self) -> bool:
        """The text is longer than any summary: the rest of the response cannot make it usable."""
        return self._room < 0

    def feed(self, chunk: bytes) -> None:
        self._note(self._events.feed(chunk))

    def finish(self) -> SummaryResponse:
        """After the last chunk. Never raises."""
        while self.is_behind:
            self.catch_up()
        self._note(self._events.finish())
        facts, text = self._facts, "".join(self._texts)
        has_error = facts.has_error or self.is_over
        return SummaryResponse(
            facts.usage, facts.finish_reason, has_error, self._is_complete(), text, self._has_tool_calls
        )

    def _note(self, events: list[SseEvent]) -> None:
        for event in events:
            for document in self._facts.note(event):
                self._add(read_piece(document))

    def _add(self, part: Piece) -> None:
        self._has_tool_calls = self._has_tool_calls or part.has_calls
        # Some servers repeat the whole message after its deltas.
        if part.text and not (part.is_whole and self._texts):
            if self._room > 0:
                self._texts.append(part.text[: self._room])
            self._room -= len(part.text)
