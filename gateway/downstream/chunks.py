"""Finds the end of a chunked request body, without decoding it.

The library's parser decodes the body, but tells its reader neither that a chunk is malformed nor how much of
the bytes it was given belongs to the next request (aiohttp 3.14).
"""

import re
from typing import Final, Literal

# RFC 9112 §7.1. Fifteen digits are more bytes than anybody sends, and fit into 64 bits.
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[^\r\n]*)?\r\n")
_EMPTY_LINE: Final = b"\r\n"
# Longer size lines with extensions, and longer trailers, have no use.
_MAX_LINES_BYTES: Final = 1 << 14

_Expected = Literal["size", "data", "data end", "trailers"]


class ChunkScanner:
    """Takes the pieces of one body, in order."""

    def __init__(self) -> None:
        self._expected: _Expected = "size"
        # Bytes of the current chunk that are still to come.
        self._left = 0
        # The beginning of a line whose end is still to come.
        self._line = b""
        self._trailer_bytes = 0

    def find_end(self, piece: bytes) -> int | None:
        """The position behind the body's last byte, None if the body goes on behind the piece.

        Raises ValueError for a body that is malformed.
        """
        at = 0
        while at < len(piece):
            if self._expected == "data":
                step = min(self._left, len(piece) - at)
                self._left -= step
                at += step
                if not self._left:
                    self._expected = "data end"
                continue
            end = piece.find(b"\n", at) + 1
            line = self._line + piece[at : end or len(piece)]
            if len(line) + self._trailer_bytes > _MAX_LINES_BYTES:
                raise ValueError("a line between chunks is too long")
            if not end:
                self._line = line
                return None
            self._line, at = b"", end
            if self._is_last(line):
                return at
        return None

    def _is_last(self, line: bytes) -> bool:
        """Whether the body ends with this line."""
        if self._expected == "trailers":
            self._trailer_bytes += len(line)
            return line == _EMPTY_LINE
        if self._expected == "data end":
            if line != _EMPTY_LINE:
                raise ValueError("a chunk is longer than its size")
            self._expected = "size"
            return False
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise ValueError("a line is not the size of a chunk")
        self._left = int(match[1], 16)
        self._expected = "data" if self._left else "trailers"
        return False
