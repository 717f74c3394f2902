"""Finds the end of a chunked request body, without decoding it, and leaves out its trailers.

The library's parser decodes the body, but tells its reader neither that a chunk is malformed nor how much of
the bytes it was given belongs to the next request (aiohttp 3.14).
"""

import re
from typing import Final, Literal, NamedTuple

# RFC 9112 §7.1. Fifteen digits are more bytes than any client sends, and fit into 64 bits.
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(;[^\r\n]*)?\r\n")
_BEGINNING_OF_SIZE_LINE: Final = re.compile(rb"[0-9A-Fa-f]{0,15}|[0-9A-Fa-f]{1,15}(;[^\r\n]*)?\r?")
_LINE_END: Final = b"\r\n"
# Longer size lines with extensions, and longer trailers, have no use.
_MAX_LINES_BYTES: Final = 1 << 12


class Scanned(NamedTuple):
    """data: the piece without trailers, for the library. end: the position behind the body's last byte in the
    piece, None if the body goes on behind it.
    """

    data: bytes
    end: int | None


class ChunkScanner:
    """Takes the pieces of one body, in order.

    left_bytes: of the current chunk, still to come. is_plain: there are neither extensions nor trailers so
    far, so that everybody who reads the body finds the same end.
    """

    def __init__(self) -> None:
        self.left_bytes = 0
        self.is_plain = True
        self._expected: Literal["size", "data", "data end", "trailers"] = "size"
        # The beginning of a line whose end is still to come.
        self._line = b""
        self._trailer_bytes = 0

    def scan(self, piece: bytes) -> Scanned:
        """Raises ValueError for a body that is malformed."""
        at = 0
        trailers_at = 0 if self._expected == "trailers" else len(piece)
        while at < len(piece):
            if self._expected == "data":
                at = self._skip_data(piece, at)
                continue
            end = piece.find(b"\n", at) + 1
            line = self._line + piece[at : end or len(piece)]
            if len(line) + self._trailer_bytes > _MAX_LINES_BYTES:
                raise ValueError("a line between chunks is too long")
            if not end:
                self._check_beginning(line)
                self._line = line
                break
            self._line, at = b"", end
            if self._expected == "trailers":
                if self._is_end(line):
                    return Scanned(piece[:trailers_at] + _LINE_END, at)
            elif self._begins_trailers(line):
                trailers_at = at
        return Scanned(piece[:trailers_at], None)

    def _skip_data(self, piece: bytes, at: int) -> int:
        step = min(self.left_bytes, len(piece) - at)
        self.left_bytes -= step
        if not self.left_bytes:
            self._expected = "data end"
        return at + step

    def _is_end(self, line: bytes) -> bool:
        """line: of the trailers, or the empty one behind them."""
        self._trailer_bytes += len(line)
        if line != _LINE_END:
            self.is_plain = False
        return line == _LINE_END

    def _begins_trailers(self, line: bytes) -> bool:
        """Whether the line is the size of the last chunk, which has no data."""
        if self._expected == "data end":
            if line != _LINE_END:
                raise ValueError("a chunk is longer than its size")
            self._expected = "size"
            return False
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise ValueError("a line is not the size of a chunk")
        self.is_plain = self.is_plain and match[2] is None
        self.left_bytes = int(match[1], 16)
        self._expected = "data" if self.left_bytes else "trailers"
        return not self.left_bytes

    def _check_beginning(self, line: bytes) -> None:
        """The library's parser looks at each byte, so this must, too."""
        if self._expected == "data end" and not _LINE_END.startswith(line):
            raise ValueError("a chunk is longer than its size")
        if self._expected == "size" and not _BEGINNING_OF_SIZE_LINE.fullmatch(line):
            raise ValueError("a line is not the size of a chunk")
