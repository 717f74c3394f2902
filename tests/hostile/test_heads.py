"""Whatever a client sends as a request, the upstream gets one clearly framed request or none."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from tests.hostile.process import linux_only, running_process
from tests.toy.gateway import make_settings
from tests.toy.upstream import ToyUpstream
from tests.wire_through.raw import Connection, connecting, render_answer, writing
from tests.wire_through.wiring import WHOLE, Wire, opening_wire, render_chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEBIBYTE = 1 << 20
POST = b"POST /v1/chat/completions HTTP/1.1\r\n"
HOST = b"Host: a\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(WHOLE)
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_wire() -> AsyncIterator[Wire]:
    async with opening_wire(more="admin: {port: 0}\nbounds: {head_seconds: 0.5}\n") as wire:
        wire.upstream.script = writing(render_answer())
        yield wire


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    module_wire.upstream.received.clear()
    return module_wire


def post(headers: bytes = HOST + LENGTH, body: bytes = WHOLE, line: bytes = POST) -> bytes:
    return line + headers + b"\r\n" + body


def coded(*codings: bytes) -> bytes:
    """A chunked request with other transfer codings."""
    return post(HOST + b"".join(b"Transfer-Encoding: %b\r\n" % coding for coding in codings), CHUNKS)


def get(line: bytes) -> bytes:
    return line + b"\r\nHost: a\r\n\r\n"


REFUSED = {
    "CONNECT": (501, b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n"),
    "gzip and chunked": (501, coded(b"gzip, chunked")),
    "chunked behind nothing": (501, coded(b", chunked")),
    "no coding": (501, post(HOST + b"Transfer-Encoding:\r\n" + LENGTH)),
    "no coding behind a length": (400, post(HOST + LENGTH + b"Transfer-Encoding:\r\n")),
    "chunked twice": (400, coded(b"chunked, chunked")),
    "chunked on two lines": (400, coded(b"chunked", b"chunked")),
    "gzip on another line": (400, coded(b"gzip", b"chunked")),
    "chunked first": (400, coded(b"chunked, gzip")),
    "an unknown coding": (400, coded(b"xchunked")),
    "identity": (400, post(HOST + LENGTH + b"Transfer-Encoding: identity\r\n")),
    "a coding and a length": (400, post(HOST + LENGTH + b"Transfer-Encoding: chunked\r\n", CHUNKS)),
    "a coding in HTTP/1.0": (400, coded(b"chunked").replace(b"HTTP/1.1", b"HTTP/1.0")),
    "two equal lengths": (400, post(HOST + LENGTH + LENGTH)),
    "a list of lengths": (400, post(HOST + LENGTH.replace(b"\r\n", b", 1\r\n"))),
    "a signed length": (400, post(HOST + LENGTH.replace(b": ", b": +"))),
    "a hexadecimal length": (400, post(HOST + LENGTH.replace(b": ", b": 0x"))),
    "a length with an underscore": (400, post(HOST + b"Content-Length: 1_0\r\n")),
    "an empty length": (400, post(HOST + b"Content-Length:\r\n")),
    "a space before the colon": (400, post(HOST + LENGTH.replace(b":", b" :"))),
    "a folded header": (400, post(HOST + b"X-A: b\r\n c\r\n" + LENGTH)),
    "a fold at the beginning": (400, post(b" X-A: b\r\n" + HOST + LENGTH)),
    "line feeds": (400, post().replace(b"\r\n", b"\n")),
    "one line feed": (400, post(HOST.replace(b"\r\n", b"\n") + LENGTH)),
    "a line feed at the end": (400, POST + HOST + LENGTH + b"\n" + WHOLE),
    "a carriage return in a value": (400, post(HOST + b"X-A: b\rc\r\n" + LENGTH)),
    "a zero byte": (400, post(HOST + b"X-A: b\0c\r\n" + LENGTH)),
    "a name that is not ASCII": (400, post(HOST + "Xé: a\r\n".encode() + LENGTH)),
    "no name": (400, post(HOST + b": a\r\n" + LENGTH)),
    "no colon": (400, post(HOST + b"abc\r\n" + LENGTH)),
    "two hosts": (400, post(HOST + HOST + LENGTH)),
    "no host": (400, post(LENGTH)),
    "a host that is none": (400, post(b"Host: a b/c\r\n" + LENGTH)),
    "HTTP/0.9": (505, b"GET /v1/models\r\n\r\n"),
    "HTTP/0.9 by name": (505, get(b"GET /v1/models HTTP/0.9")),
    "HTTP/2 by name": (505, get(b"GET /v1/models HTTP/2.0")),
    "HTTP/1.2": (400, get(b"GET /v1/models HTTP/1.2")),
    "HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "an expectation": (417, post(HOST + LENGTH + b"Expect: 200-ok\r\n")),
    "a fragment": (400, get(b"GET /v1/models#a HTTP/1.1")),
    "a space in the target": (400, get(b"GET /v1/models a HTTP/1.1")),
    "a target that is not ASCII": (400, get("GET /v1/modèls HTTP/1.1".encode())),
    "an unknown method": (400, get(b"FOO /v1/models HTTP/1.1")),
    "another authority": (400, get(b"GET a:80 HTTP/1.1")),
    "a target of 70,000 bytes": (400, get(b"GET /v1/" + b"a" * 70_000 + b" HTTP/1.1")),
    "300 headers": (400, post(HOST + b"X-A: b\r\n" * 300 + LENGTH)),
    "a head of 300 KB": (431, post(HOST + (b"X-A: " + b"b" * 30_000 + b"\r\n") * 10 + LENGTH)),
    "a chunk without a size": (400, post(HOST + b"Transfer-Encoding: chunked\r\n", b"x\r\n")),
    "a chunk that is too long": (
        400,
        post(HOST + b"Transfer-Encoding: chunked\r\n", b"1\r\nab\r\n0\r\n\r\n"),
    ),
    "chunks with line feeds": (
        400,
        post(HOST + b"Transfer-Encoding: chunked\r\n", CHUNKS.replace(b"\r\n", b"\n")),
    ),
}
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("name", REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused(wire: Wire, name: str) -> None:
    status, request = REFUSED[name]
    async with wire.connecting() as client:
        await client.send(request + SMUGGLED)
        async with asyncio.timeout(30):
            response = await client.reader.read()
    assert response.startswith(b"HTTP/1.%d %d " % (name != "a coding in HTTP/1.0", status))
    assert len(re.findall(rb"HTTP/1.\d \d{3} ", response)) == 1 and b"connection: close" in response.lower()
    assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert wire.upstream.received == []
    assert (await wire.chat(WHOLE)).status == 200


SERVED = {
    "empty lines first": b"\r\n\r\n\r\n" + post(),
    "an unusual case of chunked": coded(b"CHUNKED"),
    "chunk extensions": post(
        HOST + b"Transfer-Encoding: chunked\r\n", CHUNKS.replace(b"\r\n", b";a=b\r\n", 1)
    ),
    "trailers": post(
        HOST + b"Transfer-Encoding: chunked\r\nTrailer: X-T\r\n",
        CHUNKS[:-2] + b"X-T: 1\r\nContent-Length: 5\r\n\r\n",
    ),
    "a tab in a value": post(HOST + b"X-A: b\tc\r\n" + LENGTH),
    "an empty host": post(b"Host:\r\n" + LENGTH),
    "an offer of HTTP/2": post(HOST + LENGTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    "headers of 60 KB": post(HOST + b"X-A: " + b"b" * 60_000 + b"\r\n" + LENGTH),
    "framing named as options": post(HOST + LENGTH + b"Connection: Content-Length, Host\r\n"),
}


@pytest.mark.parametrize("name", SERVED)
async def test_what_can_be_read_in_one_way_reaches_the_upstream_framed_anew(wire: Wire, name: str) -> None:
    async with wire.connecting() as client:
        assert (await client.ask(SERVED[name])).status == 200
        assert (await client.ask(post())).status == 200
    first, second = wire.upstream.received
    assert first.body == second.body == WHOLE
    for head in (first.head, second.head):
        assert head.values("content-length") == [b"%d" % len(WHOLE)]
        assert len(head.values("host")) == 1
        assert not any(head.values(key) for key in ("transfer-encoding", "trailer", "x-t", "upgrade"))


@pytest.mark.parametrize("beginning", [b"GET /v1/models HT", POST + HOST, render_chat(WHOLE) + b"POST"])
async def test_a_head_that_is_not_finished_in_time_ends_its_connection(wire: Wire, beginning: bytes) -> None:
    async with wire.connecting() as client:
        await client.send(beginning)
        async with asyncio.timeout(30):
            assert b"HTTP/1.1 408 " in await client.reader.read()


@linux_only
async def test_unfinished_heads_do_not_swell_memory(tmp_path: Path) -> None:
    """Eight of them took 245 MB when only the length and the number of the headers were bounded."""
    async with (
        ToyUpstream() as toy,
        running_process(make_settings(toy), tmp_path) as gateway,
        AsyncExitStack() as exits,
    ):
        before = gateway.rss_bytes
        for _ in range(8):
            client = await exits.enter_async_context(connecting(gateway.port))
            with suppress(ConnectionError):
                await send_headers(client)
        assert gateway.peak_rss_bytes - before < 64 * MEBIBYTE


async def send_headers(client: Connection) -> None:
    """As many as the library takes, of the length that it takes."""
    await client.send(POST + HOST)
    for number in range(200):
        await client.send(b"X-%d: " % number + b"x" * 60_000 + b"\r\n")
