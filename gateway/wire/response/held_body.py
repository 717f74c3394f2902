"""The body of a response that is not streamed: it waits until it is complete, unless it is too large."""

from typing import Final

# A larger one passes as it comes.
MAX_HELD_BYTES: Final = 16 * 1024 * 1024


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
        """The complete body; None if it was passed on."""
        self._begin_next()
        self._is_over = True
        return None if self.is_passing else self.data

    def _begin_next(self) -> None:
        if self._is_over:
            self._is_over = False
            self._data.clear()
