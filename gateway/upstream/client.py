"""Sends one request on a connection, a new one or a spare one, and waits for the beginning of its answer.

Works one level below the library's session, which adds, follows, keeps and decodes what a gateway must not
(FACTS §1): here there are no cookies, no redirects and no headers but those that were given.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import cached_property, partial
from typing import Final

import aiohttp
import msgspec
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.http_exceptions import HttpProcessingError

from gateway.headers import UpstreamHead
from gateway.settings import UpstreamSettings
from gateway.upstream.idle_timeout import Watch
from gateway.upstream.response import UpstreamResponse
from gateway.upstream.spares import Spares

# One write of this size at a time, so that a large body neither fills the buffer nor holds the loop.
_WRITE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 18
_HEADER_BYTES: Final = 1 << 16
_MOST_HEADERS: Final = 256
# uvicorn closes idle connections after 5 s; reusing one at that moment would fail a POST for nothing.
_KEEPALIVE_SECONDS: Final = 4.0
_SWITCHING: Final = 101
# RFC 9110 §9.3.1, §8.6: without a body these say nothing of its length.
_BODILESS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})
# RFC 9110 §9.2.2: may be sent again where a connection that had been idle broke.
_IDEMPOTENT: Final = _BODILESS | {hdrs.METH_PUT, hdrs.METH_DELETE}

OutgoingBody = bytes | AsyncIterator[bytes] | None


class UpstreamCall(msgspec.Struct, frozen=True):
    """What is sent upstream."""

    upstream: UpstreamSettings
    head: UpstreamHead
    body: OutgoingBody = None

    def with_body(self, body: bytes) -> "UpstreamCall":
        """The same call with a plain body: a rewritten one carries no content encoding."""
        return UpstreamCall(self.upstream, self.head.without_encoding, body)


class _ConnectKey(aiohttp.ClientRequest):
    """What the connector asks of a request is where it goes: one for each upstream, and asked once."""

    @cached_property
    def connection_key(self) -> ConnectionKey:
        return super().connection_key


class UpstreamClient:
    def __init__(self, upstreams: Iterable[UpstreamSettings]) -> None:
        self._timeouts = {
            upstream.connect_seconds: aiohttp.ClientTimeout(total=None, sock_connect=upstream.connect_seconds)
            for upstream in upstreams
        }
        self._doors: dict[str, _ConnectKey] = {}
        self._spares = Spares(_KEEPALIVE_SECONDS)
        self._connector: aiohttp.TCPConnector | None = None

    async def open(self) -> None:
        self._connector = aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=60)

    async def close(self) -> None:
        self._spares.close()
        if self._connector is not None:
            await self._connector.close()

    def ask(self, call: UpstreamCall, watch: Watch) -> Awaitable[UpstreamResponse]:
        """The answer's beginning; its body is still to come. Raises what `upstream_body.FOREIGN` lists."""
        if call.body is None and call.head.method in _IDEMPOTENT:
            return self._ask_twice(call, watch)
        return self._ask_once(call, watch)

    async def _ask_twice(self, call: UpstreamCall, watch: Watch) -> UpstreamResponse:
        """Again, where it met a spare connection that the upstream gave up in this moment."""
        try:
            return await self._ask_once(call, watch)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            return await self._ask_once(call, watch)

    async def _ask_once(self, call: UpstreamCall, watch: Watch) -> UpstreamResponse:
        place = call.upstream.base_url
        connection = self._spares.take(place)
        if connection is None:
            connection = await self._connect(call)
        try:
            return await _speak(connection, call, watch, partial(self._spares.keep, place))
        except BaseException:
            # Nobody knows what was said on it; it must not be used again.
            connection.close()
            raise

    async def _connect(self, call: UpstreamCall) -> Connection:
        assert self._connector is not None
        timeout = self._timeouts[call.upstream.connect_seconds]
        return await self._connector.connect(self._find_door(call), [], timeout)

    def _find_door(self, call: UpstreamCall) -> _ConnectKey:
        door = self._doors.get(call.upstream.base_url)
        if door is None:
            loop = asyncio.get_running_loop()
            door = _ConnectKey(hdrs.METH_POST, call.head.url.origin(), loop=loop)
            self._doors[call.upstream.base_url] = door
        return door


async def _speak(
    connection: Connection, call: UpstreamCall, watch: Watch, keep: Callable[[Connection], None]
) -> UpstreamResponse:
    """keep: takes the connection once the answer came to its end."""
    protocol = connection.protocol
    assert protocol is not None
    protocol.set_response_params(
        skip_payload=call.head.method == hdrs.METH_HEAD,
        read_until_eof=True,
        auto_decompress=False,
        read_bufsize=_READ_BYTES,
        max_line_size=_HEADER_BYTES,
        max_field_size=_HEADER_BYTES,
        max_headers=_MOST_HEADERS,
    )
    upload = _send(connection, protocol, call, watch)
    try:
        message, content = await protocol.read()
        while 100 <= message.code < 200 and message.code != _SWITCHING:
            message, content = await protocol.read()
    except BaseException as error:
        if upload is not None:
            upload.cancel()
        if isinstance(error, HttpProcessingError):
            raise aiohttp.ClientPayloadError("no HTTP") from error
        raise
    return UpstreamResponse(message, content, connection, keep, upload)


def _send(
    connection: Connection, protocol: ResponseHandler, call: UpstreamCall, watch: Watch
) -> "asyncio.Task[None] | None":
    """Head and body; the task that goes on with a body which is not there yet, or too large for one write."""
    transport, head, body = protocol.transport, _frame(call), call.body
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
    if isinstance(body, bytes) and len(body) <= _WRITE_BYTES:
        transport.writelines((head, body))
        return None
    transport.write(head)
    if body is None:
        return None
    loop = asyncio.get_running_loop()
    writer = StreamWriter(protocol, loop)
    if not isinstance(body, bytes) and hdrs.CONTENT_LENGTH not in call.head.headers:
        writer.enable_chunking()
    pieces = _cut(body) if isinstance(body, bytes) else body
    task = loop.create_task(_upload(writer, pieces, watch))
    task.add_done_callback(partial(_end_upload, connection))
    return task


def _frame(call: UpstreamCall) -> bytes:
    """The head with what only this side of the wire can know: where the body ends."""
    head, body = call.head, call.body
    if isinstance(body, bytes):
        return b"%bContent-Length: %d\r\n\r\n" % (head.lines, len(body))
    if hdrs.CONTENT_LENGTH in head.headers:
        return head.lines + b"\r\n"
    if body is not None:
        return head.lines + b"Transfer-Encoding: chunked\r\n\r\n"
    return head.lines + (b"\r\n" if head.method in _BODILESS else b"Content-Length: 0\r\n\r\n")


async def _cut(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), _WRITE_BYTES):
        yield view[start : start + _WRITE_BYTES]


async def _upload(
    writer: StreamWriter, pieces: AsyncIterator[bytes] | AsyncIterator[memoryview], watch: Watch
) -> None:
    """An upload that goes on is a sign of life: upstream is silent because it is still being told."""
    async for piece in pieces:
        watch.seen_seconds = time.monotonic()
        await writer.write(piece)
        watch.seen_seconds = time.monotonic()
    await writer.write_eof()


def _end_upload(connection: Connection, task: "asyncio.Task[None]") -> None:
    """One that breaks off ends the wait for its answer; after half a body the connection is of no use."""
    if task.cancelled():
        connection.close()
        return
    error, protocol = task.exception(), connection.protocol
    if error is not None and protocol is not None:
        broken = aiohttp.ClientConnectionError(f"upload broke off: {type(error).__name__}")
        protocol.set_exception(broken, error)
