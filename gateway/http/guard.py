"""Bounds a port's connections: how many there are, how large heads may be, and how long a client may take.

Without bounds, clients that send nothing, or read nothing, could use up the descriptors and the memory of
the process without any key.

A guard stands before each connection of the library, and gives it the bytes of one request at a time. So the
gateway knows which bytes are a head, which a body, and which were sent ahead, and can bound all three. Of a
head nothing is read here but its end.
"""

import asyncio
import logging
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, cast

from aiohttp import StreamReader, web

from gateway.core.errors import Overloaded, RequestRefused
from gateway.http.chunks import ChunkScanner
from gateway.http.reply import render_refusal

# Operators know these names (docs/troubleshooting.md).
log = logging.getLogger("gateway.head_parser")
connections_log = logging.getLogger("gateway.connections")

# Of a body whose length is known; of one in chunks, unless a chunk is as large. A piece of the smallest
# chunks takes milliseconds, in which no other request goes on, so each turn of the event loop takes one.
_READ_BYTES: Final = 1 << 17
_CHUNKED_READ_BYTES: Final = 1 << 10
# Unused connections are kept for longer than by any proxy in front of the gateway.
_IDLE_SECONDS: Final = 3_630.0
_MAX_SECONDS_BETWEEN_SWEEPS: Final = 1.0
# What a body must bring on average. Slower ones would keep a place for ever.
_LEAST_BYTES_PER_SECOND: Final = 1_024.0
# All unfinished heads together may take as much as this many heads of the greatest size.
_HEADS_AT_ONCE: Final = 64
_SECONDS_BETWEEN_LOG_LINES: Final = 60.0
# Beyond the bounds so many connections at once get a moment to ask for the health, and so many refused ones
# to read why.
_MOST_SPARE: Final = 32
_SPARE_SECONDS: Final = 1.0
_SPARE_BYTES: Final = 1 << 12
_MAX_LINGERING: Final = 32
_LINGER_SECONDS: Final = 1.0
_HEALTH: Final = re.compile(rb"(GET|HEAD) /(healthz|readyz) ")
_END_OF_HEAD: Final = b"\r\n\r\n"
# What an HTTP/2 client sends first. The library's parser would wait for more.
_HTTP2: Final = b"PRI * HTTP/2"
_NOT_HTTP: Final = RequestRefused(400, "The request is not valid HTTP.")
_MALFORMED_CHUNK: Final = "The chunked request body is malformed."
# Linux alone has it. Elsewhere a client that reads nothing stays until it goes.
_TCP_USER_TIMEOUT: Final[int | None] = getattr(socket, "TCP_USER_TIMEOUT", None)

# spare: beyond the bounds, its head is awaited · head: no request is open · queued: its head is complete, its
# handler has not begun · body: it is being read · ahead: all of it has come, its response has not ended
# · ended: nothing is read any more
_Stage = Literal["spare", "head", "queued", "body", "ahead", "ended"]


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


class Gate:
    """The connections of one port.

    pending_bytes: of unfinished heads and of requests sent ahead, on all connections. buffer: what is read
    at a time; it is copied before anything else is read. idle: waiting for a request, or for the rest of its
    head, in the order in which they came to rest.
    """

    def __init__(self, bounds: PortBounds) -> None:
        self.bounds = bounds
        self.pending_bytes = 0
        # Refused ones that get a moment to read why.
        self.lingering: set[asyncio.Transport] = set()
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self.idle: dict[Guard, None] = {}
        self._addresses: dict[Guard, str] = {}
        self._counts = Counter[str]()
        # In the order in which they came.
        self._spare: dict[Guard, None] = {}
        self._refused = 0
        self._logged_seconds = -_SECONDS_BETWEEN_LOG_LINES
        self._swept_seconds = time.monotonic()
        self._sweeper: asyncio.TimerHandle | None = None

    def sweep(self) -> None:
        """Looks for clients that are too slow, now and then, until `close`."""
        bounds = self.bounds
        pause = min(_MAX_SECONDS_BETWEEN_SWEEPS, bounds.head_seconds / 4, bounds.stall_seconds / 4)
        self._sweeper = asyncio.get_running_loop().call_later(pause, self.sweep)
        now = time.monotonic()
        for guard in [*self._addresses, *self._spare]:
            guard.check(now, now - self._swept_seconds)
        self._swept_seconds = now

    def close(self) -> None:
        for guard in list(self._spare):
            guard.turn_away()
        for line in self.lingering:
            line.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()

    @property
    def is_crowded(self) -> bool:
        """Whether unfinished heads take so much memory that no further one may grow."""
        return self.pending_bytes > _HEADS_AT_ONCE * self.bounds.head_bytes

    def admit(self, guard: "Guard", address: str, descriptor: int) -> bool:
        """Counts a new connection. False if it is beyond the bounds; an unused one may have to go for it."""
        reason = self._find_reason(address, descriptor)
        if reason is not None:
            self._log_refusal(reason)
            if len(self._spare) >= _MOST_SPARE:
                next(iter(self._spare)).turn_away()
            self._spare[guard] = None
            return False
        self._addresses[guard] = address
        self._counts[address] += 1
        return True

    def leave(self, guard: "Guard") -> None:
        """The connection has ended."""
        self.idle.pop(guard, None)
        self._spare.pop(guard, None)
        address = self._addresses.pop(guard, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def close_unused(self) -> None:
        for guard in [each for each in self.idle if each.is_unused]:
            guard.give_way()

    def _find_reason(self, address: str, descriptor: int) -> str | None:
        bounds = self.bounds
        if self._counts[address] >= bounds.connections_per_address:
            return f"{bounds.connections_per_address} from one address (bounds.connections_per_address)"
        if descriptor >= bounds.descriptors:
            return "file descriptors are used up (ulimit -n)"
        if len(self._addresses) < bounds.connections:
            return None
        if not self.idle:
            return f"{bounds.connections} in all (bounds.connections)"
        next(iter(self.idle)).give_way()
        return None

    def _log_refusal(self, reason: str) -> None:
        self._refused += 1
        now = time.monotonic()
        if now - self._logged_seconds >= _SECONDS_BETWEEN_LOG_LINES:
            connections_log.warning(
                "too many connections: %s; refused since the last line: %d", reason, self._refused
            )
            self._logged_seconds, self._refused = now, 0


class Guard(asyncio.BufferedProtocol):
    """Of one connection. The server calls `begin` and `end` for each request.

    closes: no further request may follow. Behind chunks one is only looked for where everybody finds the same
    end of the body.
    """

    def __init__(self, make_connection: Callable[[], web.RequestHandler], gate: Gate) -> None:
        self._connection = make_connection()
        self._gate = gate
        self._line: asyncio.Transport | None = None
        self._stage: _Stage = "ended"
        self._is_connected = False
        self._is_spare = False
        self.closes = False
        # What has come and may not be given to the library yet.
        self._held: bytes | bytearray = b""
        self._is_holding_back = False
        self._pending_bytes = 0
        # Of the current head: its size so far, its last bytes, and when it began.
        self._head_bytes = 0
        self._head_tail = b""
        self._head_seconds = 0.0
        # Of the current body: bytes still to come if its length is known, else what finds its end.
        self._left_bytes = 0
        self._chunks: ChunkScanner | None = None
        self._content: StreamReader | None = None
        self._fail: Callable[[RequestRefused], None] | None = None
        self._is_answered = False
        # When the client last sent something, and when it will have been too slow on average.
        self._heard_seconds = 0.0
        self._due_seconds = 0.0

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have this interface without inheriting from it.
        line = self._line = cast(asyncio.Transport, transport)
        peer, connected = line.get_extra_info("peername"), line.get_extra_info("socket")
        descriptor = connected.fileno() if connected is not None else 0
        if peer and connected is not None and _TCP_USER_TIMEOUT is not None:
            milliseconds = max(1, int(self._gate.bounds.stall_seconds * 1_000))
            with suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, milliseconds)
        if self._gate.admit(self, str(peer[0]) if peer else "", descriptor):
            self._connect(line)
        else:
            self._stage, self._is_spare, self._head_seconds = "spare", True, time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gate.leave(self)
        self._count_pending(0)
        self._stage, self._held, self._line, self._content, self._fail = "ended", b"", None, None, None
        if self._is_connected:
            self._disconnect(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._chunks is None or self._stage != "body":
            return self._gate.buffer
        return self._gate.buffer[: max(_CHUNKED_READ_BYTES, self._chunks.left_bytes)]

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._gate.buffer[:nbytes])
        self._heard_seconds = time.monotonic()
        if self._stage == "spare":
            self._take_spare(data)
        else:
            self._advance(data)

    def pause_writing(self) -> None:
        if self._is_connected:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._is_connected:
            self._connection.resume_writing()

    # What the server calls

    def begin(
        self, content: StreamReader | None, length: int | None, fail: Callable[[RequestRefused], None]
    ) -> None:
        """A handler begins, for a body of so many bytes, or a chunked one if `length` is None.

        fail: called if the rest of the body does not come, or cannot be read.
        """
        self._stage, self._content, self._fail, self._is_answered = "body", content, fail, False
        self._left_bytes = length or 0
        self._chunks = ChunkScanner() if content is not None and length is None else None
        self.closes = self._is_spare or self._chunks is not None
        self._due_seconds = time.monotonic() + self._gate.bounds.stall_seconds
        if self._chunks is None and not self._left_bytes:
            self._stage = "ahead"
        self._head_bytes = 0
        self._release()

    def end(self, *, is_last: bool) -> None:
        """The handler has ended. The rest of the body, if any, goes to the library, which ignores it.

        is_last: no request follows on this connection.
        """
        self._is_answered = True
        if self._is_spare:
            self.close()
        elif self._stage == "ahead" and not is_last:
            self._expect_head()
            if self._held:
                self._release()

    def close(self) -> None:
        """At once, but what has been written is still sent."""
        if self._is_connected:
            self._connection.force_close()
        elif self._line is not None:
            self._line.close()

    # What the gate calls

    @property
    def is_unused(self) -> bool:
        return self._stage == "head" and not self._head_bytes

    def check(self, now_seconds: float, past_seconds: float) -> None:
        """Ends the connection if its client has been silent, or slow, for too long.

        past_seconds: since the last check.
        """
        bounds = self._gate.bounds
        head_seconds = now_seconds - self._head_seconds
        if self._stage == "spare" and head_seconds > _SPARE_SECONDS:
            self.turn_away()
        elif self._stage in ("head", "queued") and self._head_bytes and head_seconds > bounds.head_seconds:
            self._refuse(RequestRefused(408, "The request's head did not arrive in time."))
        elif not self._is_missing_body:
            # Nothing that the client could send is missing, or it is told to wait.
            self._due_seconds += past_seconds
            self._heard_seconds = now_seconds
        elif now_seconds > min(self._due_seconds, self._heard_seconds + bounds.stall_seconds):
            self._fail_body(408, "The rest of the request body did not arrive in time.")

    def give_way(self) -> None:
        """Closes a connection on which no request is open."""
        self._gate.leave(self)
        self.close()

    def turn_away(self) -> None:
        """Refuses a connection beyond the bounds."""
        self._refuse(Overloaded("The gateway has too many open connections; try again."))

    # Errors

    def _refuse(self, error: RequestRefused) -> None:
        """Ends a connection on which no request is open, with a reason."""
        if self._line is not None and not self._line.is_closing():
            if self._is_connected:
                log.info("refused with %d on a connection", error.status)
            self._line.write(render_refusal(error))
        self.linger()

    def linger(self) -> None:
        """Ends the connection, and drops what still comes for a moment.

        Bytes that are unread when it closes, or come later, might cost the client what has been written. Only
        some clients get this moment.
        """
        gate, line = self._gate, self._line
        gate.leave(self)
        self._stage, self._held = "ended", b""
        self._count_pending(0)
        if line is None or line.is_closing():
            return
        if self._is_connected:
            # It may be about to answer what it cannot parse, and must neither do so behind the end nor close.
            self._connection.transport = None
            self._disconnect(None)
        if len(gate.lingering) >= _MAX_LINGERING:
            line.close()
            return
        gate.lingering.add(line)
        line.resume_reading()
        with suppress(OSError):
            # The client may have gone.
            line.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, _end_lingering, gate, line)

    def _fail_body(self, status: int, message: str) -> None:
        """The rest of the body will not come."""
        if self._fail is not None:
            log.info("refused with %d on a connection", status)
            self._fail(RequestRefused(status, message))

    # Bytes, in the order of a request

    @property
    def _is_missing_body(self) -> bool:
        """Whether the next byte of a body is up to the client."""
        content = self._content
        if self._stage not in ("body", "ahead") or self._is_answered or content is None or content.is_eof():
            return False
        return self._line is not None and self._line.is_reading()

    def _connect(self, line: asyncio.Transport) -> None:
        self._stage, self._is_connected = "head", True
        self._connection.connection_made(line)
        self._gate.idle[self] = None

    def _disconnect(self, reason: Exception | None) -> None:
        """The library has nothing to do with the connection any more."""
        self._is_connected = False
        self._connection.connection_lost(reason)

    def _take_spare(self, data: bytes) -> None:
        """Health is told beyond the bounds, too, to who asks for it in one go."""
        self._held += data
        is_whole = _END_OF_HEAD in self._held
        if is_whole and self._line is not None and _HEALTH.match(self._held):
            self._gate.leave(self)
            self._connect(self._line)
            self._release()
        elif is_whole or len(self._held) >= _SPARE_BYTES:
            self.turn_away()

    def _advance(self, data: bytes) -> None:
        """Gives the library what it may have, and holds the rest."""
        while data:
            if self._held or self._stage not in ("head", "body"):
                self._hold(data)
                return
            data = self._take_head(data) if self._stage == "head" else self._take_body(data)

    def _take_head(self, data: bytes) -> bytes:
        """Returns what is behind the head."""
        gate = self._gate
        if not self._head_bytes:
            # RFC 9112 §2.2: empty lines before a request are ignored.
            data = data.lstrip(b"\r\n")
            if not data:
                return b""
            if data.startswith(_HTTP2):
                self._refuse(_NOT_HTTP)
                return b""
            self._head_seconds, self._head_tail = time.monotonic(), b""
        elif gate.is_crowded:
            self._refuse(Overloaded("Too many unfinished requests; try again."))
            return b""
        beginning = self._head_tail + data
        end = beginning.find(_END_OF_HEAD)
        is_whole = end >= 0
        taken = end + len(_END_OF_HEAD) - len(self._head_tail) if is_whole else len(data)
        self._head_bytes += taken
        if self._head_bytes > gate.bounds.head_bytes:
            self._refuse(RequestRefused(431, f"The head is larger than {gate.bounds.head_bytes} bytes."))
            return b""
        if is_whole:
            self._stage = "queued"
            gate.idle.pop(self, None)
        else:
            self._head_tail = beginning[1 - len(_END_OF_HEAD) :]
            self._count_pending(self._head_bytes)
        self._connection.data_received(data[:taken])
        return data[taken:]

    def _take_body(self, data: bytes) -> bytes:
        """Returns what is behind the body."""
        chunks = self._chunks
        size = self._left_bytes if chunks is None else max(_CHUNKED_READ_BYTES, chunks.left_bytes)
        taken, rest = data[:size], data[size:]
        self._due_seconds += len(taken) / _LEAST_BYTES_PER_SECOND
        if chunks is not None:
            return self._take_chunks(chunks, taken, rest)
        self._left_bytes -= len(taken)
        self._connection.data_received(taken)
        if not self._left_bytes:
            self._end_body()
        return rest

    def _take_chunks(self, chunks: ChunkScanner, piece: bytes, rest: bytes) -> bytes:
        """The same. rest: what is behind the piece; it has to wait for its turn."""
        try:
            taken, end = chunks.scan(piece)
        except ValueError:
            self._stage = "ahead"
            self._fail_body(400, _MALFORMED_CHUNK)
            return b""
        if taken:
            self._connection.data_received(taken)
        if end is None:
            if rest or len(piece) <= _CHUNKED_READ_BYTES:
                # No further in this turn of the event loop: uvloop would read up to 32 times.
                self._held = rest
                self._hold_back()
                asyncio.get_running_loop().call_soon(self._release)
            return b""
        if self._is_missing_body:
            # The library's parser has not found the end, and does not say why.
            self._fail_body(400, _MALFORMED_CHUNK)
        elif chunks.is_plain:
            self.closes = self._is_spare
        self._end_body()
        return piece[end:] + rest

    def _end_body(self) -> None:
        self._stage = "ahead"
        if self._is_answered and not self.closes:
            self._expect_head()

    def _expect_head(self) -> None:
        self._stage, self._content, self._fail = "head", None, None
        self._gate.idle[self] = None

    def _hold(self, data: bytes) -> None:
        """Keeps bytes whose turn has not come; if they are too many, their sender has to wait."""
        if self._stage == "ended" or (self._stage == "ahead" and self.closes):
            return
        if not self._held:
            self._held = data
        else:
            if isinstance(self._held, bytes):
                self._held = bytearray(self._held)
            self._held += data
        self._count_pending(len(self._held))
        if len(self._held) > self._gate.bounds.head_bytes or self._gate.is_crowded:
            self._hold_back()

    def _hold_back(self) -> None:
        """Lets the client wait, until `_release`, unless the library does so already."""
        if self._line is not None and self._line.is_reading():
            self._is_holding_back = True
            self._line.pause_reading()

    def _release(self) -> None:
        """Goes on with the bytes that were held."""
        self._count_pending(0)
        if self._is_holding_back and self._line is not None and not self._line.is_closing():
            self._is_holding_back = False
            self._line.resume_reading()
        held, self._held = bytes(self._held), b""
        self._advance(held)

    def _count_pending(self, size_bytes: int) -> None:
        self._gate.pending_bytes += size_bytes - self._pending_bytes
        self._pending_bytes = size_bytes


def _end_lingering(gate: Gate, transport: asyncio.Transport) -> None:
    gate.lingering.discard(transport)
    transport.abort()
