"""Removes from an event stream the one chunk that was sent only because the gateway asked for usage.

That chunk has `choices: []` and a usage object. The client did not ask for it, and some clients fail on a
chunk without choices. All other bytes stay as they are, however the stream is cut. The stream must not be
compressed: the gateway asks for `identity`.
"""

import msgspec

# The usage chunk is below 2 KB at all providers. A longer event is not held back.
MAX_HELD_BYTES = 64 * 1024
_LINE_ENDS = b"\r\n"
_decode = msgspec.json.Decoder().decode


class UsageChunkFilter:
    """Holds back an event only while it may still turn out to be the usage chunk.

    An event is removed, with the blank line that ends it, if it has exactly one `data` line and that is the
    usage chunk. Only the lines of an event decide, so cuts between chunks do not matter.
    """

    def __init__(self) -> None:
        self._rest = b""  # an incomplete line that was not sent
        self._held: list[bytes] = []  # complete lines of an event that were not sent
        self._held_bytes = 0
        self._has_extra = False  # one of them is the usage chunk
        self._is_passing = False  # the event is kept: its lines are sent as they come
        self._is_in_line = False  # a part of the line has been sent

    def feed(self, chunk: bytes) -> bytes:
        """Returns what can be sent now. Whole events without usage are returned as they are, quickly."""
        data = self._rest + chunk
        end = _find_end_of_events(data)
        if self._held or not end or _may_have_usage(data[:end]):
            return self._filter(data)
        self._begin_event()
        self._is_in_line = False
        self._rest = b""
        return data if end == len(data) else data[:end] + self._filter(data[end:])

    def finish(self) -> bytes:
        """The bytes held back, unless they are the usage chunk without its blank line."""
        last, self._rest = self._rest, b""
        sent = self._take_line(last) if last else b""
        return sent + self._end_event(b"")

    def _filter(self, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        # A CR at the end may be half of a CRLF, so the line is not complete.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        sent = [self._take_line(line) for line in lines]
        return b"".join(sent) + self._take_rest()

    def _take_line(self, line: bytes) -> bytes:
        """Takes a complete line, or the end of one. Returns the bytes that can be sent now."""
        if self._is_in_line:
            self._is_in_line = False
            return line
        content = line.rstrip(_LINE_ENDS)
        if not content:
            return self._end_event(line)
        if not self._held and content.startswith(b":") and len(content) <= MAX_HELD_BYTES:
            # A keep-alive must not wait for the event after it.
            return line
        self._held.append(line)
        self._held_bytes += len(content)
        return b"" if self._may_be_extra(content) else self._release()

    def _take_rest(self) -> bytes:
        content = self._rest.rstrip(_LINE_ENDS)
        if not self._is_passing and len(content) <= MAX_HELD_BYTES:
            return b""
        self._rest = self._rest[len(content) :]
        self._is_in_line = self._is_in_line or bool(content)
        return self._release() + content

    def _may_be_extra(self, content: bytes) -> bool:
        """Whether the event may still be removed after this line."""
        if self._is_passing or self._held_bytes > MAX_HELD_BYTES:
            return False
        if content.partition(b":")[0] != b"data":
            return True
        has_data_already, self._has_extra = self._has_extra, _is_usage_chunk(content)
        return self._has_extra and not has_data_already

    def _release(self) -> bytes:
        """Sends the lines held back, and all further lines of this event."""
        sent = b"".join(self._held)
        self._begin_event()
        self._is_passing = True
        return sent

    def _end_event(self, blank_line: bytes) -> bytes:
        sent = b"" if self._has_extra else b"".join(self._held) + blank_line
        self._begin_event()
        return sent

    def _begin_event(self) -> None:
        self._held.clear()
        self._held_bytes = 0
        self._has_extra = self._is_passing = False


def _find_end_of_events(data: bytes) -> int:
    """The length of `data` up to the end of its last blank line; 0 if there is none."""
    if data.endswith((b"\n\n", b"\r\n\r\n")):
        return len(data)
    return data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0


def _may_have_usage(data: bytes) -> bool:
    """False if every usage is null, as in OpenAI's chunks before the last. Works on a line or on many events.

    Counting is the fastest search in bytes.
    """
    present = data.count(b'"usage"')
    nulls = data.count(b'"usage":null') if present else 0
    return present != nulls and present != nulls + data.count(b'"usage": null')


def _is_usage_chunk(line: bytes) -> bool:
    if not _may_have_usage(line) or b'"choices":[{' in line:
        return False
    try:
        chunk = _decode(line.removeprefix(b"data:"))
    except (ValueError, RecursionError):
        return False
    match chunk:
        case {"choices": [], "usage": dict()}:
            return True
    return False
