"""What the guard of a connection sees, and what it keeps from the library: sockets on both sides."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawResponseMessage

from gateway.upstream.connection_guard import MAX_HEAD_BYTES, guard_connection
from tests.toy.running import wait_until
from tests.wire_through.raw import Ending, end, render_answer

# Anonymous key exchange: TLS without a certificate, which a test may use.
_CIPHERS = "AECDH-AES128-SHA:@SECLEVEL=0"
_UNFRAMED = b"HTTP/1.1 200 OK\r\n\r\nhalf"


class Guarded:
    """A connection on which a request could be sent, and the server's end of it."""

    def __init__(self, protocol: ResponseHandler, writer: asyncio.StreamWriter) -> None:
        self.protocol = protocol
        self.guard = guard_connection(protocol)
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, data: bytes) -> tuple[RawResponseMessage, StreamReader]:
        """The head of the response that the server sends."""
        self.guard.begin()
        self.protocol.set_response_params(read_until_eof=True)
        await self.send(data)
        message, content = await self.protocol.read()
        self.guard.end_head()
        return message, content


@asynccontextmanager
async def connecting(server_tls: ssl.SSLContext | None = None) -> AsyncIterator[Guarded]:
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[asyncio.StreamWriter] = loop.create_future()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server_tls)
    port = server.sockets[0].getsockname()[1]
    client_tls = make_tls(ssl.PROTOCOL_TLS_CLIENT) if server_tls is not None else None
    transport, protocol = await loop.create_connection(
        lambda: ResponseHandler(loop), "127.0.0.1", port, ssl=client_tls
    )
    writer = await accepted
    try:
        yield Guarded(protocol, writer)
    finally:
        transport.abort()
        writer.transport.abort()
        server.close()
        await asyncio.sleep(0)


def make_tls(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    return context


async def test_a_connection_has_one_guard_for_as_long_as_it_lives() -> None:
    async with connecting() as end_to_end:
        assert guard_connection(end_to_end.protocol) is end_to_end.guard


async def test_a_connection_is_used_once_a_response_has_ended_on_it() -> None:
    async with connecting() as guarded:
        guard = guarded.guard
        assert (guard.is_used, guard.has_rested(0.0)) == (False, False)
        _, content = await guarded.read(render_answer(b"{}"))
        assert (await content.read(), guard.has_answered) == (b"{}", True)
        guard.end()
        assert guard.is_used
        await wait_until(lambda: guard.has_rested(0.005))
        guard.begin()
        assert not guard.has_answered


async def test_bytes_that_answer_nothing_end_the_connection_and_reach_no_one() -> None:
    async with connecting() as guarded:
        guarded.guard.end()
        assert guarded.guard.is_silent()
        await guarded.send(render_answer(b"late"))
        await wait_until(lambda: guarded.guard.is_over)
        assert (len(guarded.protocol), guarded.guard.is_silent()) == (0, False)
        await wait_until(lambda: not guarded.protocol.is_connected())


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_closed_connection_is_seen_before_the_loop_has_read_it(ending: Ending) -> None:
    """Nothing is awaited between the closing and the look at the connection."""
    async with connecting() as guarded:
        guarded.guard.end()
        peer = guarded.writer.get_extra_info("socket")
        if ending == "reset":
            await end(guarded.writer, ending)
            await wait_until(lambda: not guarded.guard.is_silent())
        else:
            peer.shutdown(socket.SHUT_WR)
            assert not guarded.guard.is_over
            assert not guarded.guard.is_silent()


async def test_waiting_for_a_sign_ends_with_the_time_with_a_byte_or_with_the_connection() -> None:
    async with connecting() as guarded:
        guard = guarded.guard
        guard.begin()
        guarded.protocol.set_response_params(read_until_eof=True)
        await guard.wait_for_sign(0.001)
        assert not guard.has_answered
        asyncio.get_running_loop().call_soon(guarded.writer.write, b"HTTP/1.1 200")
        await guard.wait_for_sign(1_000)
        assert (guard.has_answered, guard.is_over) == (True, False)
        asyncio.get_running_loop().call_soon(guarded.writer.close)
        await guard.wait_for_sign(1_000)
        assert guard.is_over


@pytest.mark.parametrize("is_one_line", [True, False])
async def test_a_head_has_a_bound_also_if_each_of_its_lines_is_short(is_one_line: bool) -> None:
    async with connecting() as guarded:
        guarded.guard.begin()
        guarded.protocol.set_response_params(
            read_until_eof=True, max_line_size=1 << 30, max_field_size=1 << 30, max_headers=1 << 30
        )
        await guarded.send(b"HTTP/1.1 200 OK\r\n")
        line = b"X-A: " + b"y" * 1_000_000 if is_one_line else b"X-A: y\r\n" * 300_000
        guarded.writer.write(line)
        with pytest.raises(LineTooLong):
            await guarded.protocol.read()


async def test_a_body_may_be_larger_than_any_head() -> None:
    async with connecting() as guarded:
        body = b"x" * (3 * MAX_HEAD_BYTES)
        _, content = await guarded.read(render_answer(body))
        assert await content.read() == body


@pytest.mark.parametrize(("ending", "is_whole"), [("close", True), ("reset", False)])
async def test_a_body_that_ends_with_its_connection_must_end_cleanly(ending: Ending, is_whole: bool) -> None:
    async with connecting() as guarded:
        _, content = await guarded.read(_UNFRAMED)
        guarded.guard.watch_end(content, is_unframed=True)
        assert await content.readany() == b"half"
        await end(guarded.writer, ending)
        await check_end(content, is_whole=is_whole)


async def test_an_end_that_came_before_anyone_watched_for_it_is_seen_too() -> None:
    async with connecting() as guarded:
        _, content = await guarded.read(_UNFRAMED)
        await end(guarded.writer, "reset")
        await wait_until(lambda: guarded.guard.is_over and not guarded.protocol.is_connected())
        guarded.guard.watch_end(content, is_unframed=True)
        await check_end(content, is_whole=False)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_over_tls_only_its_own_closing_ends_such_a_body(is_whole: bool) -> None:
    """RFC 9112 §9.8: without the alert anyone on the way may have cut the response off."""
    async with connecting(make_tls(ssl.PROTOCOL_TLS_SERVER)) as guarded:
        _, content = await guarded.read(_UNFRAMED)
        guarded.guard.watch_end(content, is_unframed=True)
        assert await content.readany() == b"half"
        if is_whole:
            guarded.writer.close()
        else:
            descriptor = guarded.writer.get_extra_info("socket").fileno()
            with socket.socket(fileno=socket.dup(descriptor)) as peer:
                peer.shutdown(socket.SHUT_WR)
        await check_end(content, is_whole=is_whole)


async def check_end(content: StreamReader, *, is_whole: bool) -> None:
    async with asyncio.timeout(30):
        if is_whole:
            assert await content.readany() == b""
            return
        with pytest.raises(aiohttp.ClientPayloadError):
            await content.readany()
