"""Sends one request on a pooled connection, and waits for the beginning of its answer.

Works one level below the library's session, which adds, follows, keeps and decodes what a gateway must not
(FACTS §1): here there are no cookies, no redirects and no headers but those that were given.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from functools import partial
from typing import Final

import aiohttp
import msgspec
from aiohttp import hdrs
from aiohttp.connector import Connection
from aiohttp.helpers import TimerNoop
from aiohttp.http import StreamWriter
from multidict import CIMultiDict
from yarl import URL

from gateway.settings import UpstreamSettings
from gateway.watchdog import Watch

# One write of this size at a time, so that a large body neither fills the buffer nor holds the loop.
_WRITE_BYTES: Final = 1 << 18
_READ_BYTES: Final = 1 << 18
_HEADER_BYTES: Final = 1 << 16
_MOST_HEADERS: Final = 256
# uvicorn closes idle connections after 5 s; reusing one at that moment would fail a POST for nothing.
_KEEPALIVE_SECONDS: Final = 4.0
# RFC 9110 §9.3.1, §8.6: without a body these say nothing of its length.
_BODILESS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})
# RFC 9110 §9.2.2: may be sent again where a connection that had been idle broke.
_IDEMPOTENT: Final = _BODILESS | {hdrs.METH_PUT, hdrs.METH_DELETE}

Body = bytes | AsyncIterator[bytes] | None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent upstream. headers: may be shared between calls, so never changed."""

    upstream: UpstreamSettings
    method: str
    url: URL
    headers: CIMultiDict[str]
    body: Body = None

    def with_body(self, body: bytes) -> "Call":
        """The same call with a plain body: a rewritten one carries no content encoding."""
        if hdrs.CONTENT_ENCODING not in self.headers:
            return msgspec.structs.replace(self, body=body)
        headers = self.headers.copy()
        headers.popall(hdrs.CONTENT_ENCODING)
        return msgspec.structs.replace(self, body=body, headers=headers)

    def with_header(self, name: str, value: str) -> "Call":
        headers = self.headers.copy()
        headers[name] = value
        return msgspec.structs.replace(self, headers=headers)


class Dialer:
    def __init__(self, upstreams: Iterable[UpstreamSettings]) -> None:
        self._timeouts = {
            upstream.connect_seconds: aiohttp.ClientTimeout(total=None, sock_connect=upstream.connect_seconds)
            for upstream in upstreams
        }
        # One for each upstream: what the pool asks of a request is where it goes.
        self._doors: dict[str, aiohttp.ClientRequest] = {}
        self._connector: aiohttp.TCPConnector | None = None

    async def open(self) -> None:
        self._connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEPALIVE_SECONDS, ttl_dns_cache=60
        )

    async def close(self) -> None:
        if self._connector is not None:
            await self._connector.close()

    def ask(self, call: Call, watch: Watch) -> Awaitable[aiohttp.ClientResponse]:
        """The answer's beginning; its body is still to come. Raises what `upstream_body.FOREIGN` lists."""
        if call.body is None and call.method in _IDEMPOTENT:
            return self._ask_twice(call, watch)
        return self._ask_once(call, watch)

    async def _ask_twice(self, call: Call, watch: Watch) -> aiohttp.ClientResponse:
        """Again, where it met a pooled connection that the upstream gave up in this moment."""
        try:
            return await self._ask_once(call, watch)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            return await self._ask_once(call, watch)

    async def _ask_once(self, call: Call, watch: Watch) -> aiohttp.ClientResponse:
        assert self._connector is not None
        door = self._find_door(call)
        timeout = self._timeouts[call.upstream.connect_seconds]
        connection = await self._connector.connect(door, [], timeout)
        try:
            return await _speak(connection, door, call, watch)
        except BaseException:
            # Nobody knows what was said on it; it must not be used again.
            connection.close()
            raise

    def _find_door(self, call: Call) -> aiohttp.ClientRequest:
        door = self._doors.get(call.upstream.base_url)
        if door is None:
            loop = asyncio.get_running_loop()
            door = aiohttp.ClientRequest(hdrs.METH_POST, call.url.origin(), loop=loop)
            self._doors[call.upstream.base_url] = door
        return door


async def _speak(
    connection: Connection, door: aiohttp.ClientRequest, call: Call, watch: Watch
) -> aiohttp.ClientResponse:
    protocol = connection.protocol
    assert protocol is not None
    protocol.set_response_params(
        skip_payload=call.method == hdrs.METH_HEAD,
        read_until_eof=True,
        auto_decompress=False,
        read_bufsize=_READ_BYTES,
        max_line_size=_HEADER_BYTES,
        max_field_size=_HEADER_BYTES,
        max_headers=_MOST_HEADERS,
    )
    writer = StreamWriter(protocol, door.loop)
    headers = _frame(call, door.headers[hdrs.HOST])
    if hdrs.TRANSFER_ENCODING in headers:
        writer.enable_chunking()
    await writer.write_headers(f"{call.method} {call.url.raw_path_qs} HTTP/1.1", headers)
    response = aiohttp.ClientResponse(
        call.method,
        call.url,
        writer=await _write(writer, connection, call.body, watch),
        continue100=None,
        timer=TimerNoop(),
        request_info=door.request_info,
        traces=[],
        loop=door.loop,
        session=None,  # type: ignore[arg-type]  # it wants one only to guess charsets
        stream_writer=writer,
    )
    try:
        return await response.start(connection)
    except BaseException:
        response.close()
        raise


def _frame(call: Call, host: str) -> CIMultiDict[str]:
    """The headers with what only this side of the wire can know: where it goes, where the body ends."""
    headers = CIMultiDict({hdrs.HOST: host})
    headers.extend(call.headers)
    if isinstance(call.body, bytes):
        headers[hdrs.CONTENT_LENGTH] = str(len(call.body))
    elif hdrs.CONTENT_LENGTH not in headers:
        if call.body is not None:
            headers[hdrs.TRANSFER_ENCODING] = "chunked"
        elif call.method not in _BODILESS:
            headers[hdrs.CONTENT_LENGTH] = "0"
    return headers


async def _write(
    writer: StreamWriter, connection: Connection, body: Body, watch: Watch
) -> "asyncio.Task[None] | None":
    """Head and body; the task that goes on with a body which is not there yet, or too large for one write."""
    if body is None:
        writer.set_eof()
        return None
    if isinstance(body, bytes) and len(body) <= _WRITE_BYTES:
        await writer.write(body, drain=False)
        return None
    writer.send_headers()
    pieces = _cut(body) if isinstance(body, bytes) else body
    task = asyncio.get_running_loop().create_task(_upload(writer, pieces, watch))
    task.add_done_callback(partial(_end_upload, connection))
    return task


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
