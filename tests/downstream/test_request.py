"""Bodies as they come in over a real socket: whole, compressed, too large, asked for, streamed, absent."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import brotli
import pytest

from gateway.core.errors import RequestRefused
from gateway.downstream.request import ReceivedBody, Request, read_body, stream_body
from gateway.downstream.response import Response, send_local_response
from gateway.downstream.server import Server

MOST_BYTES = 200_000
TEXT = b'{"messages": []}' * 10


@asynccontextmanager
async def serving(read: Callable[[Request], Awaitable[object]]) -> AsyncIterator[int]:
    async def answer(request: Request) -> Response:
        await read(request)
        return send_local_response(request, 200, b"{}")

    listener = Server(answer)
    await listener.open("127.0.0.1", 0)
    try:
        yield listener.port
    finally:
        await listener.close()


async def send(port: int, *pieces: bytes) -> bytes:
    """Everything that comes back up to the end of the answer's head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.02)
    async with asyncio.timeout(5):
        while b"HTTP/1.1 200 OK" not in received:
            received += await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return received


async def read_all(*pieces: bytes) -> ReceivedBody | RequestRefused:
    """What `read_body` makes of a request in these pieces."""
    found: list[ReceivedBody | RequestRefused] = []

    async def read(request: Request) -> None:
        try:
            found.append(await read_body(request, MOST_BYTES))
        except RequestRefused as error:
            found.append(error)

    async with serving(read) as port:
        await send(port, *pieces)
    return found[0]


def request(body: bytes, *headers: str) -> bytes:
    lines = ["POST / HTTP/1.1", "Host: a", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + framed + b"0\r\n\r\n"


@pytest.mark.parametrize("body", [b"", b"x", TEXT, b"y" * MOST_BYTES])
async def test_a_plain_body_is_the_same_object_twice(body: bytes) -> None:
    read = await read_all(request(body))
    assert isinstance(read, ReceivedBody)
    assert read.raw == body
    assert read.plain is read.raw


async def test_a_body_may_come_in_pieces() -> None:
    whole = request(TEXT)
    read = await read_all(whole[:60], whole[60:100], whole[100:])
    assert isinstance(read, ReceivedBody)
    assert read.raw == TEXT
    read = await read_all(chunked(TEXT[:5], TEXT[5:]))
    assert isinstance(read, ReceivedBody)
    assert read.raw == TEXT


LARGE = bytes(range(256)) * 700


@pytest.mark.parametrize("body", [TEXT, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("br", brotli.compress), ("GZIP", gzip.compress)]
)
async def test_a_coding_is_taken_off_and_the_original_kept(
    body: bytes, coding: str, compress: Callable[[bytes], bytes]
) -> None:
    packed = compress(body)
    assert await read_all(request(packed, f"Content-Encoding: {coding}")) == ReceivedBody(packed, body)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "exotic", "gzip, exotic"])
async def test_what_cannot_be_unpacked_stays_as_it_came(coding: str) -> None:
    assert await read_all(request(b"odd \x00\xff", f"Content-Encoding: {coding}")) == ReceivedBody(
        *[b"odd \x00\xff"] * 2
    )


async def test_what_unpacks_to_more_than_the_limit_stays_packed() -> None:
    bomb = gzip.compress(b"x" * (MOST_BYTES + 1))
    assert await read_all(request(bomb, "Content-Encoding: gzip")) == ReceivedBody(bomb, bomb)


@pytest.mark.parametrize("make", [request, chunked])
async def test_a_body_over_the_limit_is_refused(make: Callable[[bytes], bytes]) -> None:
    refused = await read_all(make(b"x" * (MOST_BYTES + 1)))
    assert isinstance(refused, RequestRefused)
    assert (refused.status, refused.code) == (413, "request_too_large")


async def test_a_client_that_asks_first_is_answered() -> None:
    whole = request(TEXT, "Expect: 100-Continue")
    head, _, body = whole.partition(b"\r\n\r\n")

    async def read(incoming: Request) -> None:
        assert (await read_body(incoming, MOST_BYTES)).raw == TEXT

    async with serving(read) as port:
        assert (await send(port, head + b"\r\n\r\n", body)).startswith(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"
        )
        assert b"100" not in await send(port, request(TEXT))


async def test_a_client_that_asks_first_is_not_invited_to_send_too_much() -> None:
    async def read(incoming: Request) -> None:
        with pytest.raises(RequestRefused):
            await read_body(incoming, MOST_BYTES)

    head = request(b"x" * (MOST_BYTES + 1), "Expect: 100-continue").partition(b"\r\n\r\n")[0]
    async with serving(read) as port:
        assert b"100 Continue" not in await send(port, head + b"\r\n\r\n")


async def test_a_body_that_is_only_relayed_comes_as_it_comes() -> None:
    found: list[bytes | None] = []

    async def read(incoming: Request) -> None:
        body = stream_body(incoming)
        if body is not None and not isinstance(body, bytes):
            body = b"".join([piece async for piece in body])
        found.append(body)

    async with serving(read) as port:
        await send(port, request(TEXT)[:-3], TEXT[-3:])
        await send(port, chunked(TEXT, b"more"))
        await send(port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert found == [TEXT, TEXT + b"more", None]
