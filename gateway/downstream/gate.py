"""Which connections a port takes, and when one has waited for its client for too long.

Without bounds, clients that send nothing, or read nothing, could use up the descriptors and the memory of
the process without any key.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.core.errors import Overloaded, RequestRefused

# Operators know this name (docs/troubleshooting.md).
log = logging.getLogger("gateway.connections")

# Unused connections are kept for longer than by any proxy in front of the gateway.
_IDLE_SECONDS: Final = 3_630.0
_MAX_SECONDS_BETWEEN_SWEEPS: Final = 1.0
# All unfinished heads together may take as much as this many heads of the greatest size.
_HEADS_AT_ONCE: Final = 64
_SECONDS_BETWEEN_LOG_LINES: Final = 60.0
# So many refused clients at once get a second to read why.
_MAX_LINGERING: Final = 64


@dataclass(frozen=True, kw_only=True)
class PortBounds:
    """What connections may cost; `settings/schema.py` describes the fields that can be set."""

    connections: int = 4_096
    connections_per_address: int = 1_024
    # The number of the first descriptor that is kept free for everything else.
    descriptors: int = 1 << 30
    head_bytes: int = 1 << 18
    head_seconds: float = 30.0
    stall_seconds: float = 60.0
    # How long an unused connection stays open.
    idle_seconds: float = _IDLE_SECONDS


class Watched(Protocol):
    """A connection, as the gate sees it."""

    @property
    def is_unused(self) -> bool:
        """Whether nothing has come since the last request, or since its beginning."""

    def check(self, now_seconds: float) -> None:
        """Ends the connection if its client has been silent, or has not read, for too long."""

    def give_way(self) -> None:
        """Closes the connection, on which no request is open."""


class Gate:
    """The connections of one port.

    pending_bytes: of unfinished heads and of requests sent ahead, on all connections.
    """

    def __init__(self, bounds: PortBounds) -> None:
        self.bounds = bounds
        self.pending_bytes = 0
        self.lingering = 0
        self._addresses: dict[Watched, str] = {}
        self._counts: dict[str, int] = {}
        # In the order in which they came to rest.
        self._idle: dict[Watched, None] = {}
        self._refused = 0
        self._logged_seconds = -_SECONDS_BETWEEN_LOG_LINES
        self._sweeper: asyncio.Task[None] | None = None
        # Told how many connections there are, whenever that changes.
        self._note_count: Callable[[int], None] | None = None

    def open(self) -> None:
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="connection sweeper")

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper

    def report_to(self, note_count: Callable[[int], None]) -> None:
        """note_count: called with the number of connections, now and whenever it changes."""
        self._note_count = note_count
        note_count(len(self._addresses))

    @property
    def is_crowded(self) -> bool:
        """Whether unfinished heads take so much memory that no further one may grow."""
        return self.pending_bytes > _HEADS_AT_ONCE * self.bounds.head_bytes

    @property
    def has_room_to_linger(self) -> bool:
        return self.lingering < _MAX_LINGERING

    def admit(self, connection: Watched, address: str, descriptor: int) -> RequestRefused | None:
        """Counts a new connection, or says why it is refused. An unused one may have to go for it."""
        reason = self._find_reason(address, descriptor)
        if reason is not None:
            self._log_refusal(reason)
            return Overloaded("The gateway has too many open connections; try again.")
        self._addresses[connection] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        self._report()
        return None

    def leave(self, connection: Watched) -> None:
        """The connection has ended. Does nothing for one that was refused."""
        self._idle.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
        self._report()

    def rest(self, connection: Watched) -> None:
        """The connection waits for a request, or for the rest of its head."""
        self._idle[connection] = None

    def wake(self, connection: Watched) -> None:
        """It has a request, whose head is complete."""
        self._idle.pop(connection, None)

    def close_unused(self) -> None:
        for connection in [each for each in self._idle if each.is_unused]:
            connection.give_way()

    def _report(self) -> None:
        if self._note_count is not None:
            self._note_count(len(self._addresses))

    def _find_reason(self, address: str, descriptor: int) -> str | None:
        bounds = self.bounds
        if self._counts.get(address, 0) >= bounds.connections_per_address:
            return f"{bounds.connections_per_address} from one address (bounds.connections_per_address)"
        if descriptor >= bounds.descriptors:
            return "file descriptors are used up (ulimit -n)"
        if len(self._addresses) < bounds.connections:
            return None
        if not self._idle:
            return f"{bounds.connections} in all (bounds.connections)"
        next(iter(self._idle)).give_way()
        return None

    def _log_refusal(self, reason: str) -> None:
        self._refused += 1
        now = time.monotonic()
        if now - self._logged_seconds >= _SECONDS_BETWEEN_LOG_LINES:
            log.warning("too many connections: %s; refused since the last line: %d", reason, self._refused)
            self._logged_seconds, self._refused = now, 0

    async def _sweep(self) -> None:
        bounds = self.bounds
        pause = min(_MAX_SECONDS_BETWEEN_SWEEPS, bounds.head_seconds / 4, bounds.stall_seconds / 4)
        while True:
            await asyncio.sleep(pause)
            self._check_all(time.monotonic())

    def _check_all(self, now_seconds: float) -> None:
        """In a function of its own, so that nothing refers to the last connection until the next time."""
        for connection in list(self._addresses):
            connection.check(now_seconds)
