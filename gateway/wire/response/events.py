"""Parses the bytes of a response, streamed or not, compressed or not, into events.

A body that is not a stream is one event. Knows nothing of what the events mean.
"""

from gateway.wire.content_encoding import DecodeError, Decoder, make_decoder
from gateway.wire.sse import BlockSplitter, SseEvent, parse_event

# A body that is one JSON value and larger than this is not parsed.
MAX_BODY_BYTES = 16 * 1024 * 1024
_BLANK = b" \t\r\n"
_STREAM_STARTS = (b"data:", b"event:", b":", b"id:", b"retry:")
_LONGEST_START = max(map(len, _STREAM_STARTS))


class ResponseEvents:
    """Its memory is bounded. Never raises: after bytes that cannot be decoded there are no more events."""

    def __init__(self, content_type: str, content_encoding: str) -> None:
        self._says_stream = "event-stream" in content_type.lower()
        self._decoder: Decoder | None = None
        if content_encoding:
            self._decoder = make_decoder(content_encoding, max_feed_bytes=MAX_BODY_BYTES)
        self._is_readable = not content_encoding or self._decoder is not None
        self._start: bytes | None = b""  # until it is known whether the body is a stream
        self._splitter: BlockSplitter | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0

    @property
    def is_stream(self) -> bool:
        return self._splitter is not None

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if not self._is_readable:
            return []
        try:
            plain = self._decoder.feed(chunk) if self._decoder is not None else chunk
        except DecodeError:
            self._is_readable = False
            return []
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
        return [SseEvent("", b"".join(self._body))] if self._body else []

    def _begin(self, start: bytes) -> list[SseEvent]:
        """The bytes decide what it is: some servers stream as application/json, or send a JSON error as an
        event stream.
        """
        self._start = None
        is_json = start.startswith((b"{", b"["))
        if not is_json and (self._says_stream or start.startswith(_STREAM_STARTS)):
            self._splitter = BlockSplitter()
        return self._add(start)

    def _add(self, plain: bytes) -> list[SseEvent]:
        if self._splitter is not None:
            return _parse_events(self._splitter.feed(plain))
        self._body_bytes += len(plain)
        if self._body_bytes > MAX_BODY_BYTES:
            self._is_readable = False
            self._body.clear()
        elif plain:
            self._body.append(plain)
        return []


def _parse_events(blocks: list[bytes]) -> list[SseEvent]:
    events = map(_parse_event, blocks)
    return [event for event in events if event is not None]


def _parse_event(block: bytes) -> SseEvent | None:
    if block.startswith(b"error:"):
        # llama.cpp before 2025 sent its errors in a field of this name.
        return SseEvent("error", block.removeprefix(b"error:").strip())
    return parse_event(block)
