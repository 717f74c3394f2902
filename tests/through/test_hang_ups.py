"""A hang-up on one side reaches the other side, and a slow side slows the other one down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from tests.toy.raw import Connection, Received, render_chunks, render_request, writing
from tests.toy.running import wait_until
from tests.toy.wire import PATHS, STREAMED, WHOLE, Wire, make_chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Of a model with a known window no answer is held back to see whether it is a refusal.
WIRE_MORE = 'models: [{match: "*", context: 10000000}]\n'

MEBIBYTE = 1 << 20
# What the kernel holds on two loopback connections, and a little of our own.
MAX_ON_THE_WAY_BYTES = 40 * MEBIBYTE


@asynccontextmanager
async def asked(wire: Wire, path: str, body: bytes) -> AsyncIterator[tuple[Connection, Received]]:
    """A request that has reached the upstream."""
    async with wire.connecting() as connection:
        await connection.send(render_request(path, body))
        await wait_until(lambda: len(wire.upstream.received) == 1)
        yield connection, wire.upstream.received[0]


async def is_told_of_the_hang_up(seen: Received) -> None:
    await wait_until(lambda: seen.hung_up_at is not None)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [STREAMED, WHOLE, make_chat(stream=True)], ids=["stream", "whole", "asking"])
async def test_a_hang_up_before_the_response_reaches_the_upstream(wire: Wire, path: str, body: bytes) -> None:
    wire.upstream.script = writing(then="hang")
    async with asked(wire, path, body) as (connection, seen):
        connection.writer.close()
        await is_told_of_the_hang_up(seen)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_hang_up_during_a_stream_reaches_the_upstream(wire: Wire, path: str, how: str) -> None:
    wire.upstream.script = writing(*render_chunks([b"data: {}\n\n"])[:-1], then="hang")
    async with asked(wire, path, STREAMED) as (connection, seen):
        await connection.reader.readuntil(b"data: {}\n\n")
        if how == "close":
            connection.writer.close()
        else:
            connection.writer.transport.abort()
        await is_told_of_the_hang_up(seen)


async def test_the_head_of_a_relayed_response_does_not_wait_for_its_body(wire: Wire) -> None:
    wire.upstream.script = writing(render_chunks([])[0], then="hang")
    async with asked(wire, "/v1/other", WHOLE) as (connection, _):
        head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 200")


class Flood:
    """An upstream that sends as much as the gateway takes."""

    def __init__(self, content_type: str) -> None:
        self.sent_bytes = 0
        self._headers = [("Content-Type", content_type)]

    async def write(self, _: Received, writer: asyncio.StreamWriter) -> None:
        event = b"data: " + b"x" * 50_000 + b"\n\n"
        head, chunk, _last = render_chunks([event * 20], self._headers)
        writer.write(head)
        while self.sent_bytes < 200 * MEBIBYTE:
            writer.write(chunk)
            await writer.drain()
            self.sent_bytes += len(chunk)


async def settled(read: Flood) -> int:
    """The number of bytes sent when no more go out."""
    await wait_until(lambda: read.sent_bytes > 0)
    before = -1
    while before != read.sent_bytes:
        before = read.sent_bytes
        await asyncio.sleep(0.1)
    return before


@pytest.mark.parametrize(
    ("path", "body", "content_type"),
    [
        (PATHS[0], STREAMED, "text/event-stream"),
        (PATHS[0], make_chat(stream=True), "text/event-stream"),
        (PATHS[0], WHOLE, "application/json"),
        (PATHS[1], WHOLE, "application/octet-stream"),
    ],
)
async def test_a_slow_reader_slows_the_upstream_down(
    wire: Wire, path: str, body: bytes, content_type: str
) -> None:
    """A response of 200 MB is neither held in memory nor lost."""
    flood = Flood(content_type)
    wire.upstream.script = flood.write
    async with asked(wire, path, body) as (connection, seen):
        assert 0 < await settled(flood) < MAX_ON_THE_WAY_BYTES
        left = 20 * MEBIBYTE
        while left > 0:
            left -= len(await connection.reader.read(MEBIBYTE))
        assert await settled(flood) < MAX_ON_THE_WAY_BYTES + 20 * MEBIBYTE
        connection.writer.transport.abort()
        await is_told_of_the_hang_up(seen)


@pytest_asyncio.fixture(loop_scope="module")
async def deaf_wire(wire: Wire) -> AsyncIterator[Wire]:
    """A gateway whose upstream reads heads only; its connections are closed at the end.

    The gateway does not notice that a client hangs up while it is held back: the FIN queues behind its data.
    Then only the upstream's hang-up, or `idle_seconds`, ends the exchange.
    """
    wire.upstream.reads_bodies = False
    wire.upstream.script = writing(then="hang")
    yield wire
    wire.upstream.reads_bodies = True
    await wire.upstream.hang_up()


def render_upload_head(size: int) -> bytes:
    return f"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode()


async def test_a_slow_upstream_slows_the_sender_down(deaf_wire: Wire) -> None:
    """A large upload to an unknown path is streamed through, not collected."""
    sent = 0
    async with deaf_wire.connecting() as connection:
        await connection.send(render_upload_head(200 * MEBIBYTE))
        with pytest.raises(TimeoutError):
            while sent < 200 * MEBIBYTE:
                await asyncio.wait_for(connection.send(b"x" * MEBIBYTE), 0.3)
                sent += MEBIBYTE
    assert 0 < sent < MAX_ON_THE_WAY_BYTES


async def test_an_upload_reaches_the_upstream_while_it_goes_on(deaf_wire: Wire) -> None:
    async with deaf_wire.connecting() as connection:
        await connection.send(render_upload_head(100) + b"beginning")
        await wait_until(lambda: len(deaf_wire.upstream.received) == 1)


async def test_a_response_that_comes_during_an_upload_is_passed_on(deaf_wire: Wire) -> None:
    """The upstream refuses an upload with 413 before it has read all of it."""
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    deaf_wire.upstream.script = writing(refusal, then="close")
    async with deaf_wire.connecting() as connection:
        await connection.send(render_upload_head(5_000_000) + b"beginning")
        got = await asyncio.wait_for(connection.receive(), 30)
    assert (got.status, got.body) == (413, b"{}")
