"""Chooses how the responses of a turn are put together, by the first byte of the first one.

Some servers stream what was not asked for as a stream, or send one object in place of a stream.
"""

from collections.abc import Callable
from typing import Final

from gateway.core.history.recall import ReplyMark
from gateway.wire.recall import RecallRequest, ReplyStitcher

_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
# A stream, whatever follows. Servers that keep a connection alive with blanks send one in some seconds.
_MOST_BLANKS: Final = 64 * 1024


class ChosenStitcher:
    """See ReplyStitcher."""

    def __init__(
        self, make_stream: Callable[[], ReplyStitcher], make_body: Callable[[], ReplyStitcher]
    ) -> None:
        self._make_stream = make_stream
        self._make_body = make_body
        self._chosen: ReplyStitcher | None = None
        # Blanks before the first byte that tells.
        self._blanks = bytearray()

    def feed(self, piece: bytes) -> bytes:
        if self._chosen is not None:
            return self._chosen.feed(piece)
        start = piece.lstrip(_BLANK)
        self._blanks += piece[: len(piece) - len(start)]
        if not start and len(self._blanks) <= _MOST_BLANKS:
            return b""
        self._chosen = self._make_body() if start.startswith((b"{", b"[")) else self._make_stream()
        return self._chosen.feed(bytes(self._blanks) + start)

    def end(self) -> RecallRequest | None:
        """A response of blanks alone passes, and tells nothing."""
        return self._chosen.end() if self._chosen is not None else None

    def finish(self) -> bytes:
        return self._chosen.finish() if self._chosen is not None else bytes(self._blanks)

    @property
    def has_shown(self) -> bool:
        return self._chosen is not None and self._chosen.has_shown

    @property
    def reply(self) -> ReplyMark:
        return self._chosen.reply if self._chosen is not None else ReplyMark()
