"""Writes one request to a connection: its head, and its body at once or piece by piece.

Knows how much has left, so that a request is sent again only if the upstream cannot have received it.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import aiohttp
import msgspec
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter

from gateway.core.errors import RequestRefused
from gateway.headers import UpstreamHead
from gateway.settings import UpstreamSettings
from gateway.upstream.connection_guard import ConnectionGuard
from gateway.upstream.failures import UploadFailed
from gateway.upstream.idle_timeout import IdleTimeout

# A large body is written in pieces of this size: all at once would fill the buffer and block the loop.
_WRITE_BYTES: Final = 1 << 20
# RFC 9110 §9.3.1, §8.6: requests with these methods need no Content-Length if they have no body.
_BODILESS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})
# RFC 9110 §9.2.2: these may be sent again even if the upstream has received them.
_IDEMPOTENT: Final = _BODILESS | {hdrs.METH_PUT, hdrs.METH_DELETE}

OutgoingBody = bytes | AsyncIterator[bytes] | None
_Pieces = AsyncIterator[bytes] | AsyncIterator[memoryview]


class UpstreamCall(msgspec.Struct, frozen=True):
    """A request to an upstream."""

    upstream: UpstreamSettings
    head: UpstreamHead
    body: OutgoingBody = None

    def with_body(self, body: bytes) -> "UpstreamCall":
        """The same call with a rewritten body, which has no content encoding."""
        return UpstreamCall(self.upstream, self.head.without_encoding, body)


class HeadStart(NamedTuple):
    """The head of a request goes ahead of its body on a connection that the upstream may be closing."""

    # How long such a connection has been idle, at least.
    rest_seconds: float
    # How long the body stays back.
    seconds: float


class Sending:
    """upload: the task that sends a large or streamed body, None if there is none.

    may_repeat: the upstream cannot have received the whole request, or it may receive it twice.

    On a connection that was idle the head goes ahead: if the upstream is closing it just now, that shows
    before the body has left, and no upstream can act on a head without its body.
    """

    def __init__(self, call: UpstreamCall, connection: Connection, guard: ConnectionGuard) -> None:
        self._call = call
        self._connection = connection
        self._guard = guard
        self.upload: asyncio.Task[None] | None = None
        self.may_repeat = True

    async def start(self, protocol: ResponseHandler, idle: IdleTimeout, head_start: HeadStart) -> None:
        """Writes the head, and the body or the beginning of it. Raises ConnectionError."""
        call, guard = self._call, self._guard
        head, body = _render_head(call), call.body
        transport = _find_transport(protocol)
        if body is None:
            self.may_repeat = call.head.method in _IDEMPOTENT
            transport.write(head)
            return
        if guard.has_rested(head_start.rest_seconds):
            transport.write(head)
            head = b""
            await guard.wait_for_sign(head_start.seconds)
            if guard.is_over and not guard.has_answered:
                raise aiohttp.ServerDisconnectedError
            transport = _find_transport(protocol)
        if isinstance(body, bytes) and len(body) <= _WRITE_BYTES:
            self.may_repeat = False
            transport.writelines((head, body))
        else:
            transport.write(head)
            self.upload = self._start_upload(protocol, body, idle)

    def stop(self) -> None:
        if self.upload is not None:
            self.upload.cancel()

    def _start_upload(
        self, protocol: ResponseHandler, body: bytes | AsyncIterator[bytes], idle: IdleTimeout
    ) -> "asyncio.Task[None]":
        loop = asyncio.get_running_loop()
        writer = StreamWriter(protocol, loop)
        if not isinstance(body, bytes) and hdrs.CONTENT_LENGTH not in self._call.head.headers:
            writer.enable_chunking()
        pieces = _split(body) if isinstance(body, bytes) else body
        task = loop.create_task(self._upload(writer, pieces, idle))
        task.add_done_callback(self._end_upload)
        return task

    async def _upload(self, writer: StreamWriter, pieces: _Pieces, idle: IdleTimeout) -> None:
        """An upload that goes on is a sign of life: the upstream is silent because it is still reading."""
        if self._guard.is_over:
            return
        self.may_repeat = False
        async for piece in pieces:
            idle.reset()
            await writer.write(piece)
            idle.reset()
        await writer.write_eof()

    def _end_upload(self, task: "asyncio.Task[None]") -> None:
        """A failed upload ends the wait for the response; after half a body the connection is of no use."""
        # A failed task refers to its frames, and these to this object: the body would stay in memory.
        self.upload = None
        if task.cancelled():
            self._connection.close()
            return
        error, protocol = task.exception(), self._connection.protocol
        if error is None:
            return
        # The reader of the body, which its frames refer to, refers to the error.
        error.__traceback__ = None
        if protocol is not None:
            # A client that has stopped sending is to be told so; nothing is wrong with the upstream.
            failure = error if isinstance(error, RequestRefused) else UploadFailed()
            protocol.set_exception(failure, error)


def _find_transport(protocol: ResponseHandler) -> asyncio.Transport:
    transport = protocol.transport
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("the connection is closing")
    return transport


def _render_head(call: UpstreamCall) -> bytes:
    """The head with the lines that frame the body (RFC 9112 §6)."""
    head, body = call.head, call.body
    if isinstance(body, bytes):
        return b"%bContent-Length: %d\r\n\r\n" % (head.lines, len(body))
    if hdrs.CONTENT_LENGTH in head.headers:
        return head.lines + b"\r\n"
    if body is not None:
        return head.lines + b"Transfer-Encoding: chunked\r\n\r\n"
    return head.lines + (b"\r\n" if head.method in _BODILESS else b"Content-Length: 0\r\n\r\n")


async def _split(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), _WRITE_BYTES):
        yield view[start : start + _WRITE_BYTES]
