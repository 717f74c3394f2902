"""Connections that wait for their next request: the one that was used last is used first.

The library's pool takes the oldest first, which keeps all of them alive, and none in the processor's caches.
"""

import asyncio
import time
from collections import defaultdict

from aiohttp.connector import Connection


class Spares:
    def __init__(self, keep_seconds: float) -> None:
        """keep_seconds: how long one may wait."""
        self._keep_seconds = keep_seconds
        # By the place they lead to, with the time since when they wait, the newest last.
        self._waiting: dict[str, list[tuple[Connection, float]]] = defaultdict(list)
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    def take(self, place: str) -> Connection | None:
        """One that can still be used. Whoever takes it gives it back by `keep`, or closes it."""
        waiting = self._waiting[place]
        while waiting:
            connection, since_seconds = waiting.pop()
            if self._is_usable(connection, since_seconds):
                return connection
            connection.close()
        return None

    def keep(self, place: str, connection: Connection) -> None:
        """After an answer that came to its end; one that cannot be used again is closed."""
        now = time.monotonic()
        if self._is_closed or not self._is_usable(connection, now):
            connection.close()
            return
        self._waiting[place].append((connection, now))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._keep_seconds, self._close_old)

    def close(self) -> None:
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for waiting in self._waiting.values():
            for connection, _ in waiting:
                connection.close()
        self._waiting.clear()

    def _close_old(self) -> None:
        self._sweep = None
        for place, waiting in self._waiting.items():
            usable = []
            for connection, since_seconds in waiting:
                if self._is_usable(connection, since_seconds):
                    usable.append((connection, since_seconds))
                else:
                    connection.close()
            self._waiting[place] = usable
        if any(self._waiting.values()):
            self._sweep = asyncio.get_running_loop().call_later(self._keep_seconds, self._close_old)

    def _is_usable(self, connection: Connection, since_seconds: float) -> bool:
        """Still open, with nothing said that nobody asked for, and not waiting for too long."""
        protocol = connection.protocol
        if protocol is None or not protocol.is_connected() or protocol.should_close:
            return False
        return time.monotonic() - since_seconds < self._keep_seconds
