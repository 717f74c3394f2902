"""Both ends of the wire, byte by byte: an upstream that sends what a test sets, and a client that shows what
arrives.

It knows HTTP/1.1 framing only, so that no library hides or adds anything.
"""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

_READ_BYTES = 1 << 20
_RESET = struct.pack("ii", 1, 0)
Headers = tuple[tuple[bytes, bytes], ...]
# stay: wait for the next request · close: FIN · reset: RST · hang: silence
Ending = Literal["stay", "close", "reset", "hang"]


@dataclass(frozen=True)
class Head:
    line: bytes
    headers: Headers

    def values(self, name: str) -> list[bytes]:
        wanted = name.lower().encode()
        return [value for key, value in self.headers if key.lower() == wanted]

    def without(self, *names: str) -> Headers:
        """For comparing: headers that only frame a message, or that name ours, are left out."""
        dropped = {name.lower().encode() for name in names}
        return tuple((key, value) for key, value in self.headers if key.lower() not in dropped)


@dataclass(kw_only=True)
class Received:
    """One request as it came in."""

    head: Head
    body: bytes
    is_whole: bool
    hung_up_at: float | None = None  # time.monotonic()

    @property
    def target(self) -> bytes:
        return self.head.line.split(b" ")[1]


@dataclass(frozen=True, kw_only=True)
class Got:
    """One answer as it came out. is_whole: it ended the way its framing promised."""

    head: Head
    body: bytes
    is_whole: bool

    @property
    def status(self) -> int:
        return int(self.head.line.split(b" ")[1])

    def own(self, name: str) -> str | None:
        found = self.head.values(f"x-gateway-{name}")
        return found[0].decode() if found else None

    @property
    def end_to_end(self) -> Headers:
        """The headers without framing and without those of the gateway."""
        kept = self.head.without("transfer-encoding", "connection", "keep-alive", "content-length")
        return tuple((key, value) for key, value in kept if not key.lower().startswith(b"x-gateway-"))


Script = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


def render_request(
    target: str | bytes = "/v1/chat/completions",
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    method: str = "POST",
) -> bytes:
    """A request with Host and Content-Length, and only the given further headers."""
    raw = target.encode() if isinstance(target, str) else target
    lines = [method.encode() + b" " + raw + b" HTTP/1.1", b"Host: gateway.test"]
    lines += [f"{name}: {value}".encode() for name, value in headers]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def render_answer(
    body: bytes = b"{}",
    headers: Sequence[tuple[str, str]] = (("Content-Type", "application/json"),),
    line: str = "HTTP/1.1 200 OK",
) -> bytes:
    """With Content-Length."""
    return _render_head(line, [*headers, ("Content-Length", str(len(body)))]) + body


def render_chunks(
    pieces: Iterable[bytes],
    headers: Sequence[tuple[str, str]] = (("Content-Type", "text/event-stream"),),
    line: str = "HTTP/1.1 200 OK",
) -> list[bytes]:
    """Head, one chunk per piece, and the last chunk, to be written one after the other."""
    head = _render_head(line, [*headers, ("Transfer-Encoding", "chunked")])
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece]
    return [head, *chunks, b"0\r\n\r\n"]


def _render_head(line: str, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [line, *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def writing(*pieces: bytes, then: Ending = "stay") -> Script:
    """Writes each piece apart, and most likely sends it in a segment of its own."""

    async def write(_: Received, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        await end(writer, then)

    return write


def in_turn(*scripts: Script) -> Script:
    """One script per request; the last one for all that follow."""
    left = list(scripts)

    async def write(received: Received, writer: asyncio.StreamWriter) -> None:
        script = left.pop(0) if len(left) > 1 else left[0]
        await script(received, writer)

    return write


async def end(writer: asyncio.StreamWriter, how: Ending) -> None:
    if how == "reset":
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    if how in ("close", "reset"):
        writer.close()
    if how == "hang":
        await asyncio.Event().wait()


@dataclass
class RawUpstream:
    """`script` writes the response to a request; it may be changed at any time."""

    script: Script = field(default_factory=lambda: writing(render_answer()))
    received: list[Received] = field(default_factory=list)
    reads_bodies: bool = True
    connections: int = 0
    port: int = 0
    # Of a server that speaks TLS.
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, limit=_READ_BYTES, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self.hang_up()

    async def hang_up(self) -> None:
        """Closes all connections."""
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0.005)

    @property
    def base_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            while (received := await self._read(reader)) is not None and not writer.is_closing():
                self.received.append(received)
                await self._follow(received, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> Received | None:
        head = await read_head(reader)
        if head is None:
            return None
        if not self.reads_bodies:
            return Received(head=head, body=b"", is_whole=False)
        body, is_whole = await read_body(reader, head, is_request=True)
        return Received(head=head, body=body, is_whole=is_whole)

    async def _follow(
        self, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """The script, until the other side hangs up."""
        work = asyncio.ensure_future(self.script(received, writer))
        try:
            while not work.done():
                await asyncio.wait((work,), timeout=0.01)
                if (writer.is_closing() or reader.at_eof()) and not work.done():
                    received.hung_up_at = time.monotonic()
                    return
            work.result()
        except ConnectionError:
            received.hung_up_at = time.monotonic()
        finally:
            work.cancel()


class Connection:
    """A client's connection; several requests may follow one another on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, method: str = "POST") -> Got:
        """Raises ConnectionError if no complete head arrives."""
        head = await read_head(self.reader)
        if head is None:
            raise ConnectionError("no answer")
        if method == "HEAD" or head.line.split(b" ")[1] in (b"204", b"304"):
            return Got(head=head, body=b"", is_whole=True)
        body, is_whole = await read_body(self.reader, head, is_request=False)
        return Got(head=head, body=body, is_whole=is_whole)

    async def ask(self, request: bytes) -> Got:
        await self.send(request)
        return await self.receive(request.partition(b" ")[0].decode())


@asynccontextmanager
async def connecting(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_READ_BYTES)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


async def ask(port: int, request: bytes) -> Got:
    async with connecting(port) as connection:
        return await connection.ask(request)


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """None: the other side ended without another message."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *lines = raw[:-4].split(b"\r\n")
    pairs = (text.partition(b":") for text in lines)
    return Head(line, tuple((name, value.strip(b" \t")) for name, _, value in pairs))


async def read_body(reader: asyncio.StreamReader, head: Head, *, is_request: bool) -> tuple[bytes, bool]:
    """The body, and whether its end came. Unframed: a request has none, an answer goes on to the FIN."""
    length = head.values("content-length")
    pieces: list[bytes] = []
    try:
        if head.values("transfer-encoding"):
            await _read_chunks(reader, pieces)
        elif length:
            pieces.append(await reader.readexactly(int(length[0])))
        elif not is_request:
            while chunk := await reader.read(_READ_BYTES):
                pieces.append(chunk)
    except asyncio.IncompleteReadError as error:
        return b"".join([*pieces, error.partial]), False
    except ConnectionError:
        return b"".join(pieces), False
    return b"".join(pieces), True


async def _read_chunks(reader: asyncio.StreamReader, pieces: list[bytes]) -> None:
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        if size:
            pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
        if not size:
            return
