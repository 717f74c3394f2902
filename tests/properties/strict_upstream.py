"""An upstream that accepts only requests which can be read in one way, and tells of all others.

It checks more than RFC 9112 demands of a server, as servers differ in what they make of the rest.
"""

import asyncio
import hashlib
import re
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.toy.raw import render_answer

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(_TOKEN + rb" [\x21-\x7e]+ HTTP/1\.1")
# A value has no control characters. Bytes above ASCII are opaque (RFC 9110 §5.5).
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,15}")
_CHUNK = re.compile(rb"[0-9a-fA-F]{1,8}")
_MOST_BYTES = 1 << 24


class Ambiguous(Exception):
    """What another server might read in another way."""


@dataclass(frozen=True)
class Arrived:
    """A whole request."""

    line: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def find(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass
class StrictUpstream:
    """arrived: whole requests. violations: why others could not be accepted, with their bytes.

    A request that breaks off before its end is neither.
    """

    arrived: list[Arrived] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MOST_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        self._writers: set[asyncio.StreamWriter] = set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                request = await _read_request(reader)
                self.arrived.append(request)
                writer.write(render_reply(request))
                await writer.drain()
        except Ambiguous as error:
            self.violations.append(str(error))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


def render_reply(request: Arrived) -> bytes:
    """What it answers: whatever the body of the request was."""
    reply = render_answer(make_reply_body(request.body))
    return reply.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if request.line.startswith(b"HEAD ") else reply


def make_reply_body(body: bytes) -> bytes:
    return b'{"got":"%s"}' % hashlib.sha256(body).hexdigest().encode()


async def _read_request(reader: asyncio.StreamReader) -> Arrived:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *lines = head[:-4].split(b"\r\n")
    if not _LINE.fullmatch(line):
        raise Ambiguous(f"request line {line!r}")
    fields = [_FIELD.fullmatch(text) for text in lines]
    if None in fields:
        raise Ambiguous(f"header line of {head!r}")
    headers = tuple((found[1], found[2]) for found in fields if found is not None)
    return Arrived(line, headers, await _read_body(reader, line, headers))


async def _read_body(
    reader: asyncio.StreamReader, line: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> bytes:
    lengths, codings, hosts = (
        [value for key, value in headers if key.lower() == name]
        for name in (b"content-length", b"transfer-encoding", b"host")
    )
    if len(hosts) != 1 or len(lengths) + len(codings) > 1:
        raise Ambiguous(f"framing of {line!r} {headers!r}")
    if codings:
        if codings != [b"chunked"]:
            raise Ambiguous(f"transfer coding {codings!r}")
        return await _read_chunks(reader)
    if not lengths:
        return b""
    if not _LENGTH.fullmatch(lengths[0]):
        raise Ambiguous(f"content length {lengths!r}")
    return await reader.readexactly(int(lengths[0]))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while True:
        size = (await reader.readuntil(b"\r\n"))[:-2]
        if not _CHUNK.fullmatch(size):
            raise Ambiguous(f"chunk size {size!r}")
        piece = await reader.readexactly(int(size, 16))
        if await reader.readexactly(2) != b"\r\n":
            raise Ambiguous("end of a chunk, or a trailer")
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
