"""Bodies as they come in over a real socket: whole, compressed, too large, announced, streamed, absent."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import brotli
import pytest
import zstandard
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory_budget import MemoryBudget
from gateway.core.errors import RequestRefused
from gateway.downstream.gate import PortBounds
from gateway.downstream.request import ReceivedBody, Request, RequestHead, read_body, stream_body
from gateway.downstream.response import Response, send_local_response
from gateway.downstream.server import Server

MAX_BYTES = 200_000
TEXT = b'{"messages": []}' * 10


@asynccontextmanager
async def serving(read: Callable[[Request], Awaitable[object]]) -> AsyncIterator[int]:
    async def respond(request: Request) -> Response:
        await read(request)
        return send_local_response(request, 200, b"{}")

    server = Server(respond, PortBounds())
    await server.open("127.0.0.1", 0)
    try:
        yield server.port
    finally:
        await server.close()


async def send(port: int, *pieces: bytes) -> bytes:
    """Everything that comes back up to the end of the response's head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.02)
    async with asyncio.timeout(30):
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
            found.append(await read_body(request, MAX_BYTES, MemoryBudget(1 << 30).open(), Lanes()))
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


@pytest.mark.parametrize("body", [b"", b"x", TEXT, b"y" * MAX_BYTES])
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
async def test_a_content_encoding_is_removed_and_the_original_kept(
    body: bytes, coding: str, compress: Callable[[bytes], bytes]
) -> None:
    packed = compress(body)
    assert await read_all(request(packed, f"Content-Encoding: {coding}")) == ReceivedBody(packed, body)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "exotic", "gzip, exotic"])
async def test_a_body_that_cannot_be_decoded_stays_as_it_came(coding: str) -> None:
    odd = b"odd \x00\xff"
    assert await read_all(request(odd, f"Content-Encoding: {coding}")) == ReceivedBody(odd, odd)


async def test_a_body_that_decodes_to_more_than_the_limit_stays_encoded() -> None:
    bomb = gzip.compress(b"x" * (MAX_BYTES + 1))
    why = f"more than {MAX_BYTES} bytes when decoded"
    assert await read_all(request(bomb, "Content-Encoding: gzip")) == ReceivedBody(bomb, bomb, why)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "br, br"])
async def test_a_body_takes_its_share_of_the_memory_and_a_bomb_gives_it_back(coding: str) -> None:
    pack = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstandard.compress}
    memory, sizes = MemoryBudget(1 << 30), []

    async def read(incoming: Request) -> None:
        with memory.open() as share:
            body = await read_body(incoming, 1 << 22, share, Lanes())
            sizes.append(share.size_bytes - len(body.raw))

    async with serving(read) as port:
        for plain in (LARGE, bytes(1 << 23)):
            packed = plain
            for name in coding.split(", "):
                packed = pack[name](packed)
            await send(port, request(packed, f"Content-Encoding: {coding}"))
    assert sizes == [len(LARGE), 0]
    assert memory.used_bytes == 0


@pytest.mark.parametrize("make", [request, chunked])
async def test_a_body_over_the_limit_is_refused(make: Callable[[bytes], bytes]) -> None:
    refused = await read_all(make(b"x" * (MAX_BYTES + 1)))
    assert isinstance(refused, RequestRefused)
    assert (refused.status, refused.code) == (413, "request_too_large")


async def test_a_client_that_expects_a_continue_gets_one() -> None:
    whole = request(TEXT, "Expect: 100-Continue")
    head, _, body = whole.partition(b"\r\n\r\n")

    async def read(incoming: Request) -> None:
        assert (await read_body(incoming, MAX_BYTES, MemoryBudget(1 << 30).open(), Lanes())).raw == TEXT

    async with serving(read) as port:
        assert (await send(port, head + b"\r\n\r\n", body)).startswith(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"
        )
        assert b"100" not in await send(port, request(TEXT))


async def test_a_client_that_announces_too_large_a_body_gets_no_continue() -> None:
    async def read(incoming: Request) -> None:
        with pytest.raises(RequestRefused):
            await read_body(incoming, MAX_BYTES, MemoryBudget(1 << 30).open(), Lanes())

    head = request(b"x" * (MAX_BYTES + 1), "Expect: 100-continue").partition(b"\r\n\r\n")[0]
    async with serving(read) as port:
        assert b"100 Continue" not in await send(port, head + b"\r\n\r\n")


async def test_a_relayed_body_is_streamed_unless_all_of_a_known_length_is_there() -> None:
    found: list[tuple[bool, bytes | None]] = []

    async def read(incoming: Request) -> None:
        body = stream_body(incoming)
        is_whole = isinstance(body, bytes)
        if body is not None and not isinstance(body, bytes):
            body = b"".join([piece async for piece in body])
        found.append((is_whole, body))

    async with serving(read) as port:
        await send(port, request(TEXT))
        await send(port, request(TEXT)[:-3], TEXT[-3:])
        await send(port, chunked(TEXT, b"more"))
        await send(port, chunked())
        await send(port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert found == [(True, TEXT), (False, TEXT), (False, TEXT + b"more"), (False, b""), (False, None)]


def make_head(method: str, target: str, *headers: tuple[bytes, bytes]) -> RequestHead:
    text = CIMultiDict((name.decode(), value.decode("latin-1")) for name, value in headers)
    return RequestHead(method, target, CIMultiDictProxy(text), headers)


AGENT = (b"Host", b"a"), (b"X-Session", b"s\xe9"), (b"X-Session", b"t")


def test_heads_that_differ_in_the_length_of_the_body_only_have_the_same_key() -> None:
    first, second = ((b"Content-Length", b"5"),), ((b"content-length", b"600"),)
    keys = {
        make_head("POST", "/", *AGENT).head_key,
        make_head("POST", "/", *AGENT, *first).head_key,
        make_head("POST", "/", *second, *AGENT).head_key,
    }
    assert len(keys) == 1


@pytest.mark.parametrize(
    "other",
    [
        make_head("PUT", "/", *AGENT),
        make_head("POST", "/v1", *AGENT),
        make_head("POST", "/", *AGENT[:2]),
        make_head("POST", "/", *AGENT[::-1]),
        make_head("POST", "/", AGENT[0], (b"x-session", b"s\xe9"), AGENT[2]),
        make_head("POST", "/", *AGENT[:2], (b"X-Session", b"T")),
    ],
)
def test_any_other_difference_of_heads_is_in_their_keys(other: RequestHead) -> None:
    assert other.head_key != make_head("POST", "/", *AGENT).head_key


async def test_a_slow_body_is_given_up_for_others_that_wait_for_memory() -> None:
    memory, refused = MemoryBudget(1 << 17, upload_seconds=0), []

    async def read(incoming: Request) -> None:
        with memory.open() as share, pytest.raises(RequestRefused) as error:
            await read_body(incoming, MAX_BYTES, share, Lanes())
        refused.append(error.value.status)

    async with serving(read) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(bytes(150_000))[:-1])
        while memory.used_bytes < 149_999:
            await asyncio.sleep(0.001)
        # More than what passes others that wait.
        await memory.open().grow(1 << 21)
        writer.close()
    assert refused == [503]


async def test_a_body_read_after_its_connection_was_lost_is_a_client_that_has_gone() -> None:
    loop = asyncio.get_running_loop()
    content = StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    http = make_mocked_request("POST", "/", {"Content-Length": "2"}, payload=content)
    received = Request(http, is_late=False)
    with pytest.raises(ConnectionResetError):
        await read_body(received, MAX_BYTES, MemoryBudget(1 << 30).open(), Lanes())
