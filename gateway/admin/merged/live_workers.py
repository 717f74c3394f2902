"""The workers that run now. The supervisor changes this list, and the admin port follows it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path


class LiveWorkers:
    """Each worker stands for one process, named by the path of its admin socket. A path is never used again.

    sockets: in the order of their start. replaced: how many workers were started for others that had died.
    reloads: of the settings, by their result.
    """

    def __init__(self) -> None:
        self.sockets: tuple[Path, ...] = ()
        self.replaced = 0
        self.reloads: Counter[str] = Counter()
        self._has_changed = asyncio.Event()

    def add(self, socket: Path) -> None:
        """The process was started. Its socket may not be there yet."""
        self.sockets = (*self.sockets, socket)
        self._announce()

    def remove(self, socket: Path) -> None:
        """The process has ended."""
        self.sockets = tuple(other for other in self.sockets if other != socket)
        self._announce()

    def count_replaced(self) -> None:
        self.replaced += 1

    def count_reload(self, has_failed: bool, /) -> None:
        self.reloads["failed" if has_failed else "done"] += 1

    async def follow(self) -> AsyncIterator[tuple[Path, ...]]:
        """The list as it is, and again after each change."""
        while True:
            has_changed = self._has_changed
            yield self.sockets
            await has_changed.wait()

    def _announce(self) -> None:
        self._has_changed.set()
        self._has_changed = asyncio.Event()
