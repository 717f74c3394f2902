"""Finds the end of a chunked request body, without decoding it, and leaves out its trailers.

The library's parser decodes the body, but tells its reader neither that a chunk is malformed nor how much of
the bytes it was given belongs to the next request (aiohttp 3.14).
"""

import re
from typing import Final, Literal, NamedTuple

# RFC 9112 §7.1.1: an extension has a name, and may have a value, which may be quoted.
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_QUOTED: Final = rb"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*+"
# Not `(?:…)*+`: before 3.11.5, `re` keeps half of its last round.
_EXTENSIONS: Final = rb'(?>(?:;%b++(?:=(?:%b++|"%b"))?)*)' % (_TOKEN, _TOKEN, _QUOTED)
_BEGUN_EXTENSION: Final = rb';(?:%b*|%b+=(?:%b*|"%b\\?))' % (_TOKEN, _TOKEN, _TOKEN, _QUOTED)
# Fifteen digits are more bytes than any client sends, and fit into 64 bits.
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})%b\r\n" % _EXTENSIONS)
_BEGINNING_OF_SIZE_LINE: Final = re.compile(
    rb"[0-9A-Fa-f]{0,15}|[0-9A-Fa-f]{1,15}%b(?:%b|\r)?"
    % (_EXTENSIONS.replace(b"(?>", b"(?:").replace(b")*+", b")*"), _BEGUN_EXTENSION)
)
_LINE_END: Final = b"\r\n"
# Longer size lines with extensions, and longer trailers, have no use.
_MAX_LINES_BYTES: Final = 1 << 12

_Expected = Literal["size", "data", "data end", "trailers"]


class Scanned(NamedTuple):
    """data: the piece without trailers, for the library. end: the position behind the body's last byte in the
    piece, None if the body goes on behind it.
    """

    data: bytes
    end: int | None


class ChunkScanner:
    """Takes the pieces of one body, in order."""

    def __init__(self) -> None:
        self._expected: _Expected = "size"
        # Bytes of the current chunk that are still to come.
        self._left = 0
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
                self._line = line
                self._check_beginning(line)
                break
            self._line, at = b"", end
            if self._expected == "trailers":
                self._trailer_bytes += len(line)
                if line == _LINE_END:
                    return Scanned(piece[:trailers_at] + _LINE_END, at)
            elif self._is_last_chunk(line):
                self._expected, trailers_at = "trailers", at
        return Scanned(piece[:trailers_at], None)

    def _skip_data(self, piece: bytes, at: int) -> int:
        step = min(self._left, len(piece) - at)
        self._left -= step
        if not self._left:
            self._expected = "data end"
        return at + step

    def _is_last_chunk(self, line: bytes) -> bool:
        """Whether the line is the size of the last chunk, which has no data."""
        if self._expected == "data end":
            if line != _LINE_END:
                raise ValueError("a chunk is longer than its size")
            self._expected = "size"
            return False
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise ValueError("a line is not the size of a chunk")
        self._left = int(match[1], 16)
        self._expected = "data"
        return not self._left

    def _check_beginning(self, line: bytes) -> None:
        """The library's parser looks at each byte, so this must, too."""
        if self._expected == "data end" and not _LINE_END.startswith(line):
            raise ValueError("a chunk is longer than its size")
        if self._expected == "size" and not _BEGINNING_OF_SIZE_LINE.fullmatch(line):
            raise ValueError("a line is not the size of a chunk")
