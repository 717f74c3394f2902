"""A port on which several workers listen: one queue of new connections, from which each worker takes.

A worker that dies loses only the connections that it has taken. All workers wake up for a new connection, and
the kernel gives it to the quickest; of a burst that would be nearly always the same one. So a worker takes
one at a time, and leaves it to the others for a moment while it has more connections than another.
"""

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.downstream.tally import Tally

log = logging.getLogger("gateway.connections")

BACKLOG: Final = 1_024
# An idle worker wakes up in a fraction of this.
_LEAVE_SECONDS: Final = 0.001
# The worker with fewest connections may be busy or stuck. Then another one takes the new one.
_MOST_LEFT: Final = 5
# What was left to others before that was another connection.
_FORGET_SECONDS: Final = 0.1
# Until descriptors become free.
_PAUSE_SECONDS: Final = 0.5
_USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


async def bind_port(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at every address of the host. Raises OSError for a port that is taken."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            place = (address[0], sockets[0].getsockname()[1] if sockets and not port else address[1])
            sockets.append(socket.create_server(place, family=family, backlog=BACKLOG))
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


class SharedPort:
    """The listening sockets in one worker. worker: counted from 0."""

    def __init__(self, sockets: Sequence[socket.socket], tally: Tally, worker: int) -> None:
        self._sockets = sockets
        self._tally = tally
        self._worker = worker
        self._make_connection: Callable[[], asyncio.Protocol] | None = None
        # Connections that are being made, and how many there are already.
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = 0
        # How often a connection was left to others lately, and when for the last time.
        self._left = 0
        self._left_seconds = 0.0
        self._is_closed = False

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    def open(self, make_connection: Callable[[], asyncio.Protocol]) -> None:
        self._make_connection = make_connection
        for listening in self._sockets:
            listening.setblocking(False)
            self._listen(listening)

    def note_count(self, connections: int) -> None:
        """connections: that this worker has now."""
        self._connections = connections
        self._report()

    def close(self) -> None:
        """Takes no more connections. The other workers go on."""
        if self._is_closed:
            return
        self._is_closed = True
        self._tally.leave(self._worker)
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
            listening.close()

    def _listen(self, listening: socket.socket) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._take, listening)

    def _take(self, listening: socket.socket) -> None:
        """At least one connection waits, or another worker has just taken it."""
        if self._leaves_it():
            self._pause(listening, _LEAVE_SECONDS)
            return
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _USED_UP:
                raise
            log.warning("connections wait, because none can be accepted: %s", error.strerror)
            self._pause(listening, _PAUSE_SECONDS)
            return
        self._left = 0
        connection.setblocking(False)
        # asyncio does so only for sockets that name their protocol, which inherited ones do not.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        self._report()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._report()

    def _report(self) -> None:
        if not self._is_closed:
            self._tally.write(self._worker, self._connections + len(self._tasks))

    def _leaves_it(self) -> bool:
        if self._tally.has_least(self._worker):
            return False
        now = time.monotonic()
        if now - self._left_seconds > _FORGET_SECONDS:
            self._left = 0
        self._left_seconds = now
        self._left += 1
        return self._left <= _MOST_LEFT

    def _pause(self, listening: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        loop.call_later(seconds, self._listen, listening)

    async def _connect(self, connection: socket.socket) -> None:
        assert self._make_connection is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_connection, connection)
        except OSError:
            # The client has gone already.
            connection.close()
