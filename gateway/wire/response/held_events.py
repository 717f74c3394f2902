"""The events from the one on that ends a response: they wait until it is known what follows."""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

E = TypeVar("E")

# More passes as it comes, and no call is followed.
MAX_HELD_BYTES: Final = 16 * 1024 * 1024


class HeldEvents(Generic[E]):
    """Of one response, in their order."""

    def __init__(self) -> None:
        self._events: list[E] = []
        self._bytes = 0

    def __iter__(self) -> Iterator[E]:
        return iter(self._events)

    @property
    def has_begun(self) -> bool:
        """Whether the event that ends the response has come, however much was dropped since."""
        return self._bytes > 0

    def hold(self, event: E, size_bytes: int) -> bool:
        """False once there is more than may be held: then the caller passes all of it on."""
        self._events.append(event)
        self._bytes += size_bytes
        return self._bytes <= MAX_HELD_BYTES

    def append(self, event: E) -> None:
        """The rest of a response, which is not counted."""
        self._events.append(event)

    def prepend(self, events: Iterator[E]) -> None:
        self._events[:0] = events

    def clear(self) -> None:
        """Once they have been passed on. What comes from now on is beyond the bound, too."""
        self._events.clear()
