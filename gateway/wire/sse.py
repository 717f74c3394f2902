"""Server-sent events: cuts a stream, however it arrives, into events with their bytes, and renders events.

Follows the event stream format of the WHATWG HTML standard, §9.2.6, with one difference: if the stream ends
within an event, without its blank line, that event is given too (`finish`). The bytes of all raw events
together are the bytes of the stream. Of what an event means it knows only the usage chunk.
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
_BOM: Final = b"\xef\xbb\xbf"
# The rest of a line end, and a blank line.
_END: Final = re.compile(rb"\n(?:\n|\r\n?)|\r\r\n?")
_LINE_END: Final = re.compile(rb"\r\n?|\n")
# Blank lines and comments before an event. They belong to none, and a keep-alive must not wait for the next.
# Not `(?:…)++`: before 3.11.5, `re` keeps half of its last round.
_LEADING: Final = re.compile(rb"(?>(?:(?::[^\r\n]*+)?+(?:\r\n|\n|\r(?!\n)))+)")
_LEADING_STARTS: Final = (b":", b"\r", b"\n")
# The longest end, without its last byte: so much of the end may have been seen already.
_OVERLAP_BYTES: Final = 3
_decode = msgspec.json.Decoder().decode


class SseEvent(NamedTuple):
    # "message" if the stream gives no name.
    name: str
    # Its lines, joined by \n.
    data: bytes


# One is made for each event, and a NamedTuple takes five times as long to make.
class RawEvent(msgspec.Struct, frozen=True, gc=False):
    """raw: with the blank line behind it. event: None for what is no event: comments, blank lines, fields
    without data, and pieces of an event or comment above the bound.
    """

    raw: bytes
    event: SseEvent | None


class RawEventSplitter:
    """Of one response, decoded."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        # What is not complete. Not bytes: a stream may come in pieces of two bytes.
        self._pending = bytearray()
        # How much of it holds no end of an event.
        self._searched = 0
        self._may_have_bom = True
        # The end of what is above the bound and passes in pieces.
        self._passing_end: re.Pattern[bytes] | None = None
        # How much of what is pending has passed already.
        self._passed_bytes = 0

    @property
    def held_bytes(self) -> int:
        return len(self._pending)

    @property
    def is_between_events(self) -> bool:
        return not self._pending and not self._may_have_bom

    @property
    def pending(self) -> bytes:
        """An event or a comment that is not complete, unless a part of it has passed."""
        return bytes(self._pending) if self._passing_end is None else b""

    def feed(self, chunk: bytes) -> list[RawEvent]:
        """The events that this chunk completes."""
        may_end = b"\n" in chunk or b"\r" in chunk or self._pending.endswith(b"\r")
        self._pending += chunk
        found = self._take_bom() if self._may_have_bom else []
        if may_end:
            self._take_events(found)
        is_passing = self._passing_end is not None or len(self._pending) > self._max_event_bytes
        return found + self.pass_on() if is_passing else found

    def restart(self) -> None:
        """Forgets what is pending. The next bytes begin an event."""
        self._pending.clear()
        self._searched = self._passed_bytes = 0
        self._may_have_bom, self._passing_end = False, None

    def pass_on(self) -> list[RawEvent]:
        """What is pending, before it is complete. The rest of this event or comment comes in pieces, too."""
        self._passing_end = self._find_end_pattern()
        piece = bytes(self._pending[self._passed_bytes :])
        # The last bytes may be the first of the blank line.
        del self._pending[:-_OVERLAP_BYTES]
        self._passed_bytes = len(self._pending)
        self._searched = 0
        return [RawEvent(piece, None)] if piece else []

    def finish(self) -> list[RawEvent]:
        """What is left at the end of the stream: an event without its blank line."""
        rest = bytes(self._pending[self._passed_bytes :])
        self._pending.clear()
        return [self._make(rest)] if rest else []

    def _take_bom(self) -> list[RawEvent]:
        if len(self._pending) < len(_BOM) and _BOM.startswith(self._pending):
            return []
        self._may_have_bom = False
        if not self._pending.startswith(_BOM):
            return []
        del self._pending[: len(_BOM)]
        self._searched = 0
        return [RawEvent(_BOM, None)]

    def _find_end_pattern(self) -> re.Pattern[bytes]:
        """The end of what the pending bytes begin with."""
        return self._passing_end or (_LINE_END if self._pending.startswith(_LEADING_STARTS) else _END)

    def _take_events(self, found: list[RawEvent]) -> None:
        # A CR at the end may be half of a line end.
        known, at = len(self._pending) - self._pending.endswith(b"\r"), 0
        if self._find_end_pattern().search(self._pending, self._searched, known):
            at = self._split(bytes(self._pending), known, found)
            del self._pending[:at]
        self._searched = max(0, known - at - _OVERLAP_BYTES)

    def _split(self, data: bytes, known: int, found: list[RawEvent]) -> int:
        """Appends what ends before `known`, and returns where the rest begins."""
        blank_line = _find_blank_line(data)
        if blank_line is None or self._passing_end is not None:
            return self._split_any(data, known, found)
        # The usual streams take a third of the time in this way.
        *parts, rest = data[:known].split(blank_line)
        has_plain_ends = len(blank_line) == 2
        for part in parts:
            raw = part + blank_line
            if not part or part.startswith(_LEADING_STARTS):
                self._split_any(raw, len(raw), found)
            elif len(raw) > self._max_event_bytes:
                found.append(RawEvent(raw, None))
            else:
                block = part if has_plain_ends else _with_plain_ends(part)
                found.append(RawEvent(raw, parse_event(block)))
        # Blank lines and comments do not wait for the event behind them.
        done = self._split_any(rest, len(rest), found) if rest.startswith(_LEADING_STARTS) else 0
        return known - len(rest) + done

    def _split_any(self, data: bytes, known: int, found: list[RawEvent]) -> int:
        at = 0
        while at < known:
            is_leading = self._passing_end is None and data.startswith(_LEADING_STARTS, at)
            search = _LEADING.match if is_leading else (self._passing_end or _END).search
            match = search(data, at, known)
            if match is None:
                break
            if raw := data[at + self._passed_bytes : match.end()]:
                found.append(RawEvent(raw, None) if is_leading else self._make(raw))
            self._passing_end, self._passed_bytes = None, 0
            at = match.end()
        return at

    def _make(self, raw: bytes) -> RawEvent:
        if self._passing_end is not None or len(raw) > self._max_event_bytes:
            return RawEvent(raw, None)
        return RawEvent(raw, parse_event(_with_plain_ends(raw.rstrip(b"\r\n"))))


def _with_plain_ends(block: bytes) -> bytes:
    return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in block else block


def _find_blank_line(data: bytes) -> bytes | None:
    """The only one that there is in these bytes; None if there may be several."""
    if b"\r" not in data:
        return b"\n\n"
    count = data.count(b"\r\n")
    is_only = data.count(b"\n") == count == data.count(b"\r") - data.endswith(b"\r")
    return b"\r\n\r\n" if is_only else None


class UsageChunkFilter:
    """Removes from a stream the one chunk that was sent only because the gateway asked for usage.

    That chunk has `choices: []` and a usage object. The client did not ask for it, and some clients fail on a
    chunk without choices. All other bytes stay as they are, however the stream is cut. The stream must not be
    compressed: the gateway asks for `identity`.
    """

    def __init__(self) -> None:
        self._splitter = RawEventSplitter(MAX_HELD_BYTES)
        # How much of the pending event is in lines that were looked at.
        self._seen_bytes = 0

    def feed(self, chunk: bytes) -> bytes:
        """Returns what can be sent now. Whole events without usage are returned as they are, quickly."""
        end = chunk.rfind(b"\n\n") + 2
        if end < 2:
            return self._filter(chunk)
        is_between = self._splitter.is_between_events
        events = chunk[:end] if is_between else self._splitter.pending + chunk[:end]
        if _may_have_usage(events):
            return self._filter(chunk)
        if not is_between:
            self._splitter.restart()
            self._seen_bytes = 0
        return events + self._filter(chunk[end:]) if end < len(chunk) else events

    def _filter(self, chunk: bytes) -> bytes:
        found = self._splitter.feed(chunk)
        if found:
            self._seen_bytes = 0
        if (b"\n" in chunk or b"\r" in chunk) and self._has_other_line():
            found += self._splitter.pass_on()
            self._seen_bytes = 0
        return _join(found) if found else b""

    def finish(self) -> bytes:
        """The bytes held back, unless they are the usage chunk without its blank line."""
        return _join(self._splitter.finish())

    def _has_other_line(self) -> bool:
        """Whether the pending event cannot be the usage chunk. Some servers send no blank lines at all."""
        pending = self._splitter.pending
        # A CR at the end may be half of a line end.
        end = max(pending.rfind(b"\n"), pending.rfind(b"\r", 0, -1)) + 1
        lines = pending[self._seen_bytes : end].splitlines()
        self._seen_bytes = end
        return any(line.startswith(b"data") and not _is_usage_chunk(line[5:]) for line in lines)


def _join(found: list[RawEvent]) -> bytes:
    kept = [each.raw for each in found if each.event is None or not _is_usage_chunk(each.event.data)]
    return b"".join(kept)


def _may_have_usage(data: bytes) -> bool:
    """False if every usage is null, as in OpenAI's chunks before the last. Works on one event or on many.

    Counting is the fastest search in bytes.
    """
    present = data.count(b'"usage"')
    nulls = data.count(b'"usage":null') if present else 0
    return present != nulls and present != nulls + data.count(b'"usage": null')


def _is_usage_chunk(data: bytes) -> bool:
    """Only if it is one line: nobody sends a chunk in several."""
    if not _may_have_usage(data) or b'"choices":[{' in data or b"\n" in data:
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
