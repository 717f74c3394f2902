"""The body of a response that is not streamed: it waits until it is complete, unless it is too large.

It is read in one go on the event loop, so what is read is bounded, too.
"""

from typing import Final

# A larger one passes as it comes.
MAX_HELD_BYTES: Final = 16 * 1024 * 1024
# Objects, arrays and items of arrays: their brackets and commas, those in texts too. One takes some 5 µs as a
# call, so these are half a second at worst; a long reply has a tenth.
MAX_PARTS: Final = 100_000


class HeldBody:
    """Of one response after the other."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._is_over = False
        # Too large a body has been passed on, and what follows of this turn is, too.
        self.is_passing = False

    @property
    def data(self) -> bytes:
        """What waits."""
        return bytes(self._data)

    def feed(self, piece: bytes) -> bytes:
        """What is passed on now. The first piece after `end` begins another response."""
        self._begin_next()
        self._data += piece
        if not self.is_passing and len(self._data) <= MAX_HELD_BYTES:
            return b""
        self.is_passing = True
        passed = bytes(self._data)
        self._data.clear()
        return passed

    def end(self) -> bytes | None:
        """The complete body; None if it was passed on, or is of too many parts to be read."""
        self._begin_next()
        self._is_over = True
        parts = sum(map(self._data.count, (b"{", b"[", b",")))
        return None if self.is_passing or parts > MAX_PARTS else self.data

    def _begin_next(self) -> None:
        if self._is_over:
            self._is_over = False
            self._data.clear()
