"""Parses the bytes of a response, streamed or not, compressed or not, into events.

A body that is not a stream is one event. Knows nothing of what the events mean.
"""

from collections.abc import Iterator

from gateway.wire.content_encoding import STEP_BYTES, DecodeError, make_decoder
from gateway.wire.sse import BlockSplitter, SseEvent, parse_event

# A body that is one JSON value and larger than this is not parsed.
MAX_BODY_BYTES = 16 * 1024 * 1024
# What decodes to more than this for each of its bytes, and to more than nearly every response, is a bomb.
# Streams of short events are compressed to a twentieth.
_MAX_RATIO = 50
_FREE_WORK_BYTES = 4 * 1024 * 1024
_BLANK = b" \t\r\n"
_STREAM_STARTS = (b"data:", b"event:", b":", b"id:", b"retry:")
# The steps of decoding that make one step of reading; many of them give nothing.
_MAX_PIECES = 64
_LONGEST_START = max(map(len, _STREAM_STARTS))


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
        self._splitter: BlockSplitter | None = None
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
            return events + _parse_events(self._splitter.finish())
        return [SseEvent("", bytes(self._body))] if self._body else []

    def _begin(self, start: bytes) -> list[SseEvent]:
        """The bytes decide what it is: some servers stream as application/json, or send a JSON error as an
        event stream.
        """
        self._start = None
        is_json = start.startswith((b"{", b"["))
        if not is_json and (self._says_stream or start.startswith(_STREAM_STARTS)):
            self._splitter = BlockSplitter()
            self.is_stream = True
        return self._add(start)

    def _add(self, plain: bytes) -> list[SseEvent]:
        if self._splitter is not None:
            return _parse_events(self._splitter.feed(plain))
        if len(self._body) + len(plain) > MAX_BODY_BYTES:
            self.give_up()
        else:
            self._body += plain
        return []


def _parse_events(blocks: list[bytes]) -> list[SseEvent]:
    events = map(_parse_event, blocks)
    return [event for event in events if event is not None]


def _parse_event(block: bytes) -> SseEvent | None:
    if block.startswith(b"error:"):
        # llama.cpp before 2025 sent its errors in a field of this name.
        return SseEvent("error", block.removeprefix(b"error:").strip())
    return parse_event(block)
