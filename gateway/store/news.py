"""News: what other processes that share the store have changed. Ids only, never content."""

from collections.abc import Callable
from typing import Protocol

# The tag of the owner, and what is new.
Listener = Callable[[str, str], None]


class News(Protocol):
    @property
    def generation(self) -> int:
        """Grows whenever announcements may have been missed, or the store may have lost records."""

    def announce(self, tag: str, text: str) -> None:
        """To all other processes, after what this one has queued to write before: they will look for it.

        Nothing waits for it, and it may be lost with the connection.
        """

    def subscribe(self, listener: Listener) -> None:
        """The listener is called for each announcement of another process. It must be quick."""


class NoNews:
    """For a store of one process."""

    generation = 0

    def announce(self, tag: str, text: str) -> None:
        return

    def subscribe(self, listener: Listener) -> None:
        return
