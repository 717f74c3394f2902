"""Server-sent events: cuts a stream, however it arrives, into events, renders events, and takes one out.

Follows the event stream format of the WHATWG HTML standard, §9.2.6, with one difference: if the stream ends
within an event, without its blank line, that event is given too (`finish`). Of what an event means it knows
only the usage chunk.
"""

import re
from typing import Final, NamedTuple

import msgspec

# No response of a model is this long. It bounds the memory that a stream without blank lines can fill.
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
# An event has one line, or a few. A server that sends no blank lines makes one event of its whole stream.
MAX_LINES: Final = 10_000
# The usage chunk is below 2 KB at all providers. A longer event is not held back.
MAX_HELD_BYTES: Final = 64 * 1024
DEFAULT_NAME: Final = "message"
# Lines before the first field. Atomic: before 3.11.5, `re` keeps half of the last round of `(?:…)++`.
_COMMENTS: Final = re.compile(rb"\A(?>(?::[^\n]*(?:\n|\Z))+)")
_LINE_ENDS: Final = (b"\n", b"\r\n", b"\r")
_decode = msgspec.json.Decoder().decode


class SseEvent(NamedTuple):
    # "message" if the stream gives no name.
    name: str
    # Its lines, joined by \n.
    data: bytes


class EventSplitter:
    """Of one response, decoded, without its BOM. What is above the bound is no event."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        # The event that is not complete; its lines end in \n. Not bytes: a stream may come byte by byte.
        self._pending = bytearray()
        # The stream so far ends in CR, which may be half of a line end.
        self._has_cr = False
        # The event is above the bound: of its bytes only the last two are kept.
        self._is_passing = False

    @property
    def held_bytes(self) -> int:
        return len(self._pending)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes."""
        if self._has_cr or b"\r" in chunk:
            chunk = b"\r" + chunk if self._has_cr else chunk
            self._has_cr = chunk.endswith(b"\r")
            chunk = chunk.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        searched = max(0, len(self._pending) - 1)
        self._pending += chunk
        found: list[SseEvent] = []
        if self._pending.find(b"\n\n", searched) >= 0:
            *blocks, self._pending = self._pending.split(b"\n\n")
            parsed = (self._parse(bytes(block)) for block in blocks if block)
            found = [event for event in parsed if event is not None]
        if self._is_above(self._pending):
            self._is_passing = True
            # Two bytes are never a blank line, so what comes next is taken for the end of this event.
            del self._pending[:-2]
        return found

    def finish(self) -> list[SseEvent]:
        """What is left at the end of the stream: an event without its blank line."""
        event = self._parse(bytes(self._pending).rstrip(b"\n"))
        return [event] if event is not None else []

    def _is_above(self, block: bytes | bytearray) -> bool:
        return len(block) - block.endswith(b"\n") > self._max_event_bytes

    def _parse(self, block: bytes) -> SseEvent | None:
        is_passing, self._is_passing = self._is_passing, False
        return None if is_passing or self._is_above(block) else parse_event(block)


class UsageChunkFilter:
    """Removes from a stream the one chunk that was sent only because the gateway asked for usage.

    That chunk has `choices: []` and a usage object. The client did not ask for it, and some clients fail on a
    chunk without choices. All other bytes stay as they are, however the stream is cut. The stream must not be
    compressed: the gateway asks for `identity`.
    """

    def __init__(self) -> None:
        # The whole lines of the event that has begun, while it may be the usage chunk, and whether it is.
        self._held = bytearray()
        self._is_usage = False
        # The event is another one. Its lines pass as they come, without waiting for their ends.
        self._is_passing = False
        # The line that has begun, and whether its beginning has passed.
        self._line = bytearray()
        self._has_begun = False

    def feed(self, chunk: bytes) -> bytes:
        """Returns what can be sent now. Whole events without usage are returned as they are, quickly."""
        end = chunk.rfind(b"\n\n") + 2
        if end < 2 and b"\r" in chunk:
            # An LF that comes behind the last CR is a blank line of its own, and passes.
            end = max(chunk.rfind(b"\r\n\r\n") + 4, chunk.rfind(b"\r\r") + 2)
            end = end if chunk[:end].endswith((b"\r\n\r\n", b"\r\r")) else 0
        if end < 2:
            return self._filter(chunk)
        held = bytes(self._held + self._line)
        events = held + chunk[:end] if held else chunk[:end]
        if _may_have_usage(events):
            return self._filter(chunk)
        self._held.clear()
        self._line.clear()
        self._is_usage = self._is_passing = self._has_begun = False
        return events + self._filter(chunk[end:]) if end < len(chunk) else events

    def finish(self) -> bytes:
        """The bytes held back, unless they are the usage chunk without its blank line."""
        sent: list[bytes] = []
        if self._line:
            self._take(bytes(self._line), sent)
        return b"".join(sent) if self._is_usage else b"".join([*sent, self._held])

    def _filter(self, chunk: bytes) -> bytes:
        may_end = b"\n" in chunk or b"\r" in chunk or self._line.endswith(b"\r")
        self._line += chunk
        sent: list[bytes] = []
        if may_end:
            *lines, last = bytes(self._line).splitlines(keepends=True)
            # A CR behind which nothing has come yet may be half of a line end.
            self._line = bytearray(b"" if last.endswith(b"\n") else last)
            for line in lines if self._line else [*lines, last]:
                self._take(line, sent)
        if self._line and (self._is_passing or len(self._held) + len(self._line) > MAX_HELD_BYTES):
            self._pass(sent)
            begun = len(self._line) - self._line.endswith(b"\r")
            sent.append(bytes(self._line[:begun]))
            del self._line[:begun]
            self._has_begun = self._has_begun or begun > 0
        return b"".join(sent)

    def _take(self, line: bytes, sent: list[bytes]) -> None:
        """A whole line."""
        is_blank = line in _LINE_ENDS and not self._has_begun
        self._has_begun = False
        if is_blank:
            if not self._is_usage:
                sent += (bytes(self._held), line)
            self._held.clear()
            self._is_usage = self._is_passing = False
        elif self._is_passing or (line.startswith(b":") and not self._held):
            # A comment before an event belongs to none, and a keep-alive must not wait for the next.
            sent.append(line)
        elif self._may_be_usage(line):
            self._held += line
        else:
            self._pass(sent)
            sent.append(line)

    def _may_be_usage(self, line: bytes) -> bool:
        """Whether the event may still be the usage chunk with this line. Nobody sends it in several lines."""
        if len(self._held) + len(line) > MAX_HELD_BYTES:
            return False
        if not line.startswith(b"data"):
            return True
        has_more, self._is_usage = self._is_usage, _is_usage_chunk(line.removeprefix(b"data:"))
        return self._is_usage and not has_more

    def _pass(self, sent: list[bytes]) -> None:
        """The event is another one."""
        sent.append(bytes(self._held))
        self._held.clear()
        self._is_usage, self._is_passing = False, True


def _may_have_usage(data: bytes) -> bool:
    """False if every usage is null, as in OpenAI's chunks before the last. Works on one event or on many.

    Counting is the fastest search in bytes.
    """
    present = data.count(b'"usage"')
    nulls = data.count(b'"usage":null') if present else 0
    return present != nulls and present != nulls + data.count(b'"usage": null')


def _is_usage_chunk(data: bytes) -> bool:
    if not _may_have_usage(data) or b'"choices":[{' in data:
        return False
    try:
        chunk = _decode(data)
    except (ValueError, RecursionError):
        return False
    match chunk:
        case {"choices": [], "usage": dict()}:
            return True
    return False


def render_event(event: SseEvent) -> bytes:
    """An event whose data has no line ends. The default name is left out."""
    name = b"" if event.name == DEFAULT_NAME else b"event: %s\n" % event.name.encode()
    return name + b"data: " + event.data + b"\n\n"


def parse_event(block: bytes) -> SseEvent | None:
    """The event of one block, whose lines end in \\n; None if it has no data, for instance only comments.

    Of too many lines the last ones count: the end of a stream says most.
    """
    if block.startswith(b"data: ") and b"\n" not in block:
        return SseEvent(DEFAULT_NAME, block[6:])
    if block.startswith((b":", b"\n")):
        block = _COMMENTS.sub(b"", block.removeprefix(b"\n"), 1)
        if not block:
            return None
    if block.startswith(b"error:"):
        # llama.cpp before 2025 sent its errors in a field of this name.
        return SseEvent("error", block.removeprefix(b"error:").strip())
    if block.startswith(b"event: ") and block.count(b"\n") == 1 and b"\ndata: " in block:
        start, _, value = block.partition(b"\ndata: ")
        return SseEvent(start[7:].decode("utf-8", "replace") or DEFAULT_NAME, value)
    name, data = b"", []
    lines = block.rsplit(b"\n", MAX_LINES)
    for line in lines[-MAX_LINES:]:
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return SseEvent(name.decode("utf-8", "replace") or DEFAULT_NAME, b"\n".join(data)) if data else None
