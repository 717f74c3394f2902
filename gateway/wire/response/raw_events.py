"""Cuts an event stream into its events and keeps every byte of each, so that a stream can pass as it came
while single events are left out, held back or changed.

The bytes of all raw events together are the bytes of the stream, however it is cut. Knows nothing of JSON.
"""

import re
from typing import Final, NamedTuple

from gateway.wire.sse import MAX_EVENT_BYTES, SseEvent, parse_event

_BOM: Final = b"\xef\xbb\xbf"
# A line end and a blank line. A CR before an LF is half of a line end.
_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
# Blank lines and comments before an event. They belong to none, and a keep-alive must not wait for the next.
# Not `(?:…)++`: before 3.11.5, `re` keeps half of its last round.
_LEADING: Final = re.compile(rb"(?>(?:(?::[^\r\n]*+)?+(?:\r\n|\n|\r(?!\n)))+)")
# The longest end, without its last byte: so much of the end may have been seen already.
_OVERLAP_BYTES: Final = 3


class RawEvent(NamedTuple):
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

    @property
    def held_bytes(self) -> int:
        return len(self._pending)

    def feed(self, chunk: bytes) -> list[RawEvent]:
        """The events that this chunk completes."""
        self._pending += chunk
        found: list[RawEvent] = []
        at = self._skip_bom(found)
        # A CR at the end may be half of a line end.
        known = len(self._pending) - self._pending.endswith(b"\r")
        while at < known:
            if self._passing_end is None and (leading := _LEADING.match(self._pending, at, known)):
                found.append(RawEvent(bytes(leading.group()), None))
                at = leading.end()
                continue
            end = (self._passing_end or _END).search(self._pending, max(at, self._searched), known)
            if end is None:
                break
            found.append(self._make(bytes(self._pending[at : end.end()])))
            self._passing_end = None
            at = end.end()
        del self._pending[:at]
        self._searched = max(0, known - at - _OVERLAP_BYTES)
        return found + self._pass_too_long()

    def finish(self) -> list[RawEvent]:
        """What is left at the end of the stream: an event without its blank line."""
        self._may_have_bom = False
        rest = bytes(self._pending)
        self._pending.clear()
        return [self._make(rest)] if rest else []

    def _skip_bom(self, found: list[RawEvent]) -> int:
        if not self._may_have_bom:
            return 0
        if len(self._pending) < len(_BOM) and _BOM.startswith(self._pending):
            return 0
        self._may_have_bom = False
        if not self._pending.startswith(_BOM):
            return 0
        found.append(RawEvent(_BOM, None))
        self._searched = 0
        return len(_BOM)

    def _make(self, raw: bytes) -> RawEvent:
        if self._passing_end is not None or len(raw) > self._max_event_bytes:
            return RawEvent(raw, None)
        return RawEvent(raw, parse_event(_with_plain_ends(raw).rstrip(b"\n")))

    def _pass_too_long(self) -> list[RawEvent]:
        """All but the last bytes, which may be the first of the blank line."""
        if len(self._pending) <= self._max_event_bytes:
            return []
        if self._passing_end is None:
            self._passing_end = _LINE_END if self._pending.startswith(b":") else _END
        keep = len(self._pending) - _OVERLAP_BYTES
        piece = bytes(self._pending[:keep])
        del self._pending[:keep]
        self._searched = 0
        return [RawEvent(piece, None)]


def is_closed(raw: bytes) -> bool:
    """Whether an event ends with its blank line, so that another one may stand behind it."""
    return _END.search(raw, max(0, len(raw) - _OVERLAP_BYTES - 1)) is not None


def with_data(raw: bytes, data: bytes) -> bytes:
    """An event with other data, of one line, in place of its own. Its other lines stay, in their order."""
    lines: list[bytes] = []
    is_written = False
    for line, end in _split_lines(raw):
        if line.partition(b":")[0] != b"data":
            lines.append(line + end)
        elif not is_written:
            is_written = True
            lines.append(b"data: " + data + end)
    return b"".join(lines)


def _split_lines(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Each line, and its line end, which the last one may lack."""
    lines, at = [], 0
    for match in _LINE_END.finditer(raw):
        lines.append((raw[at : match.start()], match.group()))
        at = match.end()
    return [*lines, (raw[at:], b"")] if at < len(raw) else lines


def _with_plain_ends(raw: bytes) -> bytes:
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


def on_one_line(event: SseEvent | None) -> bytes:
    """The data of an event. Line ends in JSON are white space."""
    return event.data.replace(b"\n", b" ") if event is not None else b""
