"""Sends one request to an upstream and waits for the head of its response.

Connections come from aiohttp's connector, and its parser reads the responses. The request is written here,
not by its session, which loses three things that must pass unchanged: the `?` of an empty query, bytes in a
header value that are not valid UTF-8, and the first of two headers whose names differ only in case. There are
no cookies, no redirects and no headers but those given.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Final, NamedTuple

import aiohttp
import msgspec
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from gateway.headers import UpstreamHead
from gateway.settings import UpstreamSettings
from gateway.upstream.idle_timeout import IdleTimeout
from gateway.upstream.response import FOREIGN_ERRORS, UpstreamResponse, raise_translated

# A large body is written in pieces of this size: all at once would fill the buffer and block the loop.
_WRITE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 18
_HEADER_BYTES: Final = 1 << 16
_MAX_HEADERS: Final = 256
# uvicorn closes idle connections after 5 s; a POST sent on one at that moment would fail for nothing.
_KEEPALIVE_SECONDS: Final = 4.0
_DNS_SECONDS: Final = 60
# For one request, at most this many idle connections with unexpected bytes are discarded.
_MAX_DISCARDED: Final = 8
_SWITCHING_PROTOCOLS: Final = 101
# RFC 9110 §9.3.1, §8.6: requests with these methods need no Content-Length if they have no body.
_BODILESS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})
# RFC 9110 §9.2.2: these may be sent again if an idle connection turns out to be broken.
_IDEMPOTENT: Final = _BODILESS | {hdrs.METH_PUT, hdrs.METH_DELETE}

OutgoingBody = bytes | AsyncIterator[bytes] | None


class UpstreamCall(msgspec.Struct, frozen=True):
    """A request to an upstream."""

    upstream: UpstreamSettings
    head: UpstreamHead
    body: OutgoingBody = None

    def with_body(self, body: bytes) -> "UpstreamCall":
        """The same call with a rewritten body, which has no content encoding."""
        return UpstreamCall(self.upstream, self.head.without_encoding, body)


class _Destination(NamedTuple):
    """What the connector needs to know of an upstream."""

    # It says where to connect, and is never sent.
    request: aiohttp.ClientRequest
    timeout: aiohttp.ClientTimeout


class UpstreamClient:
    def __init__(self, upstreams: Iterable[UpstreamSettings]) -> None:
        self._upstreams = list(upstreams)
        self._destinations: dict[str, _Destination] = {}
        self._connector: aiohttp.TCPConnector | None = None

    async def open(self) -> None:
        self._connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEPALIVE_SECONDS, ttl_dns_cache=_DNS_SECONDS
        )
        self._destinations = {upstream.name: _make_destination(upstream) for upstream in self._upstreams}

    async def close(self) -> None:
        if self._connector is not None:
            await self._connector.close()

    async def request(self, call: UpstreamCall, idle: IdleTimeout) -> UpstreamResponse:
        """The response, whose body is still to come; `idle` closes it. Raises UpstreamFailed."""
        may_repeat = call.body is None and call.head.method in _IDEMPOTENT
        exchange = self._exchange_with_retry if may_repeat else self._exchange
        try:
            response = await exchange(call, idle)
        except FOREIGN_ERRORS as error:
            raise_translated(error, idle)
        if call.upstream.api_key is not None:
            # A session that the upstream opens for its own key is not the tenant's.
            response.drop_cookies()
        idle.expect_from(response)
        return response

    async def _exchange_with_retry(self, call: UpstreamCall, idle: IdleTimeout) -> UpstreamResponse:
        """Sends the request again if its connection had been idle and the upstream closed it."""
        try:
            return await self._exchange(call, idle)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            return await self._exchange(call, idle)

    async def _exchange(self, call: UpstreamCall, idle: IdleTimeout) -> UpstreamResponse:
        connection, protocol = await self._connect(call.upstream)
        upload = None
        try:
            protocol.set_response_params(
                skip_payload=call.head.method == hdrs.METH_HEAD,
                read_until_eof=True,
                auto_decompress=False,
                read_bufsize=_READ_BYTES,
                max_line_size=_HEADER_BYTES,
                max_field_size=_HEADER_BYTES,
                max_headers=_MAX_HEADERS,
            )
            upload = _send(connection, protocol, call, idle)
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != _SWITCHING_PROTOCOLS:
                message, content = await protocol.read()
        except BaseException as error:
            if upload is not None:
                upload.cancel()
            # Part of a request or of a response may be on this connection; it must not be used again.
            connection.close()
            if isinstance(error, HttpProcessingError):
                raise aiohttp.ClientPayloadError("the response is not valid HTTP") from error
            raise
        return UpstreamResponse(message, content, connection, upload, idle)

    async def _connect(self, upstream: UpstreamSettings) -> tuple[Connection, ResponseHandler]:
        """A connection on which nothing waits to be read.

        The connector does not look: an upstream may have sent 408 on an idle connection before closing it,
        and the next request would take that for its own response.
        """
        assert self._connector is not None
        request, timeout = self._destinations[upstream.name]
        for _ in range(_MAX_DISCARDED):
            connection = await self._connector.connect(request, [], timeout)
            protocol = connection.protocol
            assert protocol is not None
            if not protocol.should_close:
                return connection, protocol
            connection.close()
        raise aiohttp.ServerDisconnectedError


def _make_destination(upstream: UpstreamSettings) -> _Destination:
    origin = URL(upstream.base_url, encoded=True).origin()
    request = aiohttp.ClientRequest(hdrs.METH_POST, origin, loop=asyncio.get_running_loop())
    return _Destination(request, aiohttp.ClientTimeout(sock_connect=upstream.connect_seconds))


def _send(
    connection: Connection, protocol: ResponseHandler, call: UpstreamCall, idle: IdleTimeout
) -> "asyncio.Task[None] | None":
    """Writes the head and a small body. Returns the task that sends any other body."""
    transport, head, body = protocol.transport, _render_head(call), call.body
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("the connection is closing")
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
    pieces = _split(body) if isinstance(body, bytes) else body
    task = loop.create_task(_upload(writer, pieces, idle))
    task.add_done_callback(partial(_end_upload, connection))
    return task


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


async def _upload(
    writer: StreamWriter, pieces: AsyncIterator[bytes] | AsyncIterator[memoryview], idle: IdleTimeout
) -> None:
    """An upload that goes on is a sign of life: the upstream is silent because it is still reading."""
    async for piece in pieces:
        idle.reset()
        await writer.write(piece)
        idle.reset()
    await writer.write_eof()


def _end_upload(connection: Connection, task: "asyncio.Task[None]") -> None:
    """A failed upload ends the wait for the response; after half a body the connection is of no use."""
    if task.cancelled():
        connection.close()
        return
    error, protocol = task.exception(), connection.protocol
    if error is not None and protocol is not None:
        failure = aiohttp.ClientConnectionError(f"sending the body failed: {type(error).__name__}")
        protocol.set_exception(failure, error)
