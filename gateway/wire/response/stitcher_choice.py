"""Chooses how the responses of a turn are put together, by the first byte of the first one.

Some servers stream what was not asked for as a stream, or send one object in place of a stream.
"""

from collections.abc import Callable
from typing import Final

from gateway.core.history.recall import ReplyMark
from gateway.wire.recall import RecallRequest, ReplyStitcher

_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
# Servers that keep a connection alive with blanks send one in some seconds. More are taken for a stream.
_MOST_BLANK_BYTES: Final = 64 * 1024


def is_only_blank(piece: bytes, size_bytes: int) -> bool:
    """Whether what has come by now tells nothing. piece: the newest of it. size_bytes: of all of it."""
    return not piece.lstrip(_BLANK) and size_bytes <= _MOST_BLANK_BYTES


def is_whole(start: bytes | bytearray) -> bool:
    """Whether a response that begins like this is one object, not a stream."""
    return start.lstrip(_BLANK).startswith((b"{", b"["))


class ChosenStitcher:
    """See ReplyStitcher."""

    def __init__(
        self, make_stream: Callable[[], ReplyStitcher], make_body: Callable[[], ReplyStitcher]
    ) -> None:
        self._make_stream = make_stream
        self._make_body = make_body
        self._chosen: ReplyStitcher | None = None
        # Until the first byte that tells.
        self._start = bytearray()

    def feed(self, piece: bytes) -> bytes:
        if self._chosen is not None:
            return self._chosen.feed(piece)
        self._start += piece
        if is_only_blank(piece, len(self._start)):
            return b""
        self._chosen = self._make_body() if is_whole(self._start) else self._make_stream()
        return self._chosen.feed(bytes(self._start))

    def end(self) -> RecallRequest | None:
        """A response of blanks alone passes, and tells nothing."""
        return self._chosen.end() if self._chosen is not None else None

    def finish(self) -> bytes:
        return self._chosen.finish() if self._chosen is not None else bytes(self._start)

    @property
    def has_shown(self) -> bool:
        return self._chosen is not None and self._chosen.has_shown

    @property
    def reply(self) -> ReplyMark:
        return self._chosen.reply if self._chosen is not None else ReplyMark()
