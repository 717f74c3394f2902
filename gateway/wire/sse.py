"""Server-sent events: parses a stream, cut anywhere, into events, and renders events.

Follows the event stream format of the WHATWG HTML standard, §9.2.6, with one difference: if the stream ends
within an event, without its blank line, that event is given too (`finish`). Knows nothing of JSON or any API.
"""

from typing import NamedTuple

# No response of a model is this long. It bounds the memory that a stream without blank lines can fill.
MAX_EVENT_BYTES = 16 * 1024 * 1024
# An event has one line, or a few. A server that sends no blank lines makes one event of its whole stream.
MAX_LINES = 10_000
DEFAULT_NAME = "message"
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    # "message" if the stream gives no name.
    name: str
    # Its lines, joined by \n.
    data: bytes


class BlockSplitter:
    """Cuts a stream at its blank lines. A block holds the lines of one event, with \\n as line end."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        # The block that is not complete yet. Not a list: a stream may come in pieces of two bytes.
        self._pending = bytearray()
        self._pending_bytes = 0
        self._last = b""  # its last byte
        self._start: bytes | None = b""  # None once a BOM was looked for
        self._ended_in_cr = False

    @property
    def held_bytes(self) -> int:
        return len(self._pending)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The blocks that this chunk completes, without those above the bound."""
        if self._start is not None:
            chunk = self._without_bom(self._start + chunk)
        return self._split(self._with_plain_ends(chunk))

    def finish(self) -> list[bytes]:
        """The block without a blank line at the end of the stream, if any."""
        rest, self._start = self._start or b"", None
        blocks = self._split(rest + b"\n\n")
        self._keep(b"")
        return blocks

    def _without_bom(self, start: bytes) -> bytes:
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._start = start
            return b""
        self._start = None
        return start.removeprefix(_BOM)

    def _with_plain_ends(self, chunk: bytes) -> bytes:
        if self._ended_in_cr and chunk:
            self._ended_in_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._ended_in_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _split(self, chunk: bytes) -> list[bytes]:
        if b"\n\n" not in chunk and not (self._last == b"\n" and chunk.startswith(b"\n")):
            self._keep_more(chunk)
            return []
        first_too_long = self._is_too_long()
        *blocks, rest = (bytes(self._pending) + chunk).split(b"\n\n")
        self._keep(rest)
        if first_too_long:
            del blocks[0]
        return [block for block in blocks if block and len(block) <= self._max_event_bytes]

    def _keep(self, rest: bytes) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self._last = b""
        self._keep_more(rest)

    def _keep_more(self, chunk: bytes) -> None:
        if not chunk:
            return
        self._pending += chunk
        self._pending_bytes += len(chunk)
        self._last = chunk[-1:]
        if self._is_too_long():
            # The block is too long already. Its last byte is kept to recognize the blank line.
            self._pending = bytearray(self._last)

    def _is_too_long(self) -> bool:
        """A last line end may be the first half of the blank line, which is not part of the block."""
        return self._pending_bytes - (self._last == b"\n") > self._max_event_bytes


def render_event(event: SseEvent) -> bytes:
    """An event whose data has no line ends. The default name is left out."""
    name = b"" if event.name == DEFAULT_NAME else b"event: %s\n" % event.name.encode()
    return name + b"data: " + event.data + b"\n\n"


def parse_event(block: bytes) -> SseEvent | None:
    """The event of one block; None if the block has no data, for instance only comments.

    Of too many lines the last ones count: the end of a stream says most.
    """
    if block.startswith(b"data: ") and b"\n" not in block:
        return SseEvent(DEFAULT_NAME, block[6:])
    name, data = b"", []
    lines = block.rsplit(b"\n", MAX_LINES)
    for line in lines[-MAX_LINES:]:
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return SseEvent(name.decode("utf-8", "replace") or DEFAULT_NAME, b"\n".join(data)) if data else None
