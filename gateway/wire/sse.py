"""Server-sent events: bytes, cut anywhere, into events, and back.

Follows the event stream format of the WHATWG HTML standard, §9.2.6, but for one thing: an event that the
stream ends in, without its blank line, is given too (`finish`). Knows nothing of JSON or of any API.
"""

from typing import NamedTuple

# No answer of a model is this long; a stream without blank lines must not fill the memory.
MAX_EVENT_BYTES = 16 * 1024 * 1024
DEFAULT_NAME = "message"
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """`name` is "message" where the stream names none; the lines of `data` are joined by \\n."""

    name: str
    data: bytes


class BlockSplitter:
    """Cuts a stream at its blank lines. A block is the lines of one event, their ends made \\n."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._pending: list[bytes] = []  # the block that is not complete
        self._pending_bytes = 0
        self._last = b""  # the last byte of it
        self._start: bytes | None = b""  # None once the beginning has been looked at for a BOM
        self._ended_in_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The blocks that are complete now. Those above the bound are dropped."""
        if self._start is not None:
            chunk = self._without_bom(self._start + chunk)
        return self._split(self._with_plain_ends(chunk))

    def finish(self) -> list[bytes]:
        """The block that lacked its blank line, if any."""
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
        *blocks, rest = b"".join((*self._pending, chunk)).split(b"\n\n")
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
        self._pending.append(chunk)
        self._pending_bytes += len(chunk)
        self._last = chunk[-1:]
        if self._is_too_long():
            # Too long whatever follows. Only its last byte is needed, to know the blank line.
            self._pending = [self._last]

    def _is_too_long(self) -> bool:
        """A line end may be the first half of the blank line, which is not the block's."""
        return self._pending_bytes - (self._last == b"\n") > self._max_event_bytes


class SseParser:
    """Chunks in, events out."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._splitter = BlockSplitter(max_event_bytes)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        return _parse_events(self._splitter.feed(chunk))

    def finish(self) -> list[SseEvent]:
        return _parse_events(self._splitter.finish())


def render_event(event: SseEvent) -> bytes:
    """One event of data without line ends; by its default name it is nameless."""
    name = b"" if event.name == DEFAULT_NAME else b"event: %s\n" % event.name.encode()
    return name + b"data: " + event.data + b"\n\n"


def read_event(block: bytes) -> SseEvent | None:
    """The event of one block; None where it holds comments or no data at all."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return SseEvent(DEFAULT_NAME, block[6:])
    name, data = b"", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return SseEvent(name.decode("utf-8", "replace") or DEFAULT_NAME, b"\n".join(data)) if data else None


def _parse_events(blocks: list[bytes]) -> list[SseEvent]:
    events = map(read_event, blocks)
    return [event for event in events if event is not None]
