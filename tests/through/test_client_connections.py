"""A client's connection: requests in any pieces, framing that could be read in two ways, bounds, and the end.

Whatever a client sends, the upstream gets one clearly framed request or none.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.toy.raw import (
    Connection,
    Received,
    ask,
    connecting,
    read_head,
    render_answer,
    render_chunks,
    render_request,
    writing,
)
from tests.toy.recorded import cut
from tests.toy.running import wait_until
from tests.toy.wire import CHAT_PATH, PATHS, STREAMED, WHOLE, Wire, make_chat, opening_wire, render_chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOW_SECONDS = 30.0
MEBIBYTE = 1 << 20
POST = b"POST /v1/chat/completions HTTP/1.1\r\n"
HOST = b"Host: a\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(WHOLE)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE)


async def read_rest(client: Connection) -> bytes:
    async with asyncio.timeout(SLOW_SECONDS):
        return await client.reader.read()


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
    "no coding behind a length": (400, post(HOST + LENGTH + b"Transfer-Encoding:\r\n")),
    "chunked twice": (400, coded(b"chunked, chunked")),
    "chunked on two lines": (400, coded(b"chunked", b"chunked")),
    "chunked first": (400, coded(b"chunked, gzip")),
    "an unknown coding": (400, coded(b"xchunked")),
    "identity": (400, post(HOST + LENGTH + b"Transfer-Encoding: identity\r\n")),
    "a coding and a length": (400, post(HOST + LENGTH + CHUNKED, CHUNKS)),
    "a coding in HTTP/1.0": (400, coded(b"chunked").replace(b"HTTP/1.1", b"HTTP/1.0")),
    "two equal lengths": (400, post(HOST + LENGTH + LENGTH)),
    "two lengths": (400, post(HOST + LENGTH + b"Content-Length: 3\r\n")),
    "a list of lengths": (400, post(HOST + LENGTH.replace(b"\r\n", b", 1\r\n"))),
    "a signed length": (400, post(HOST + LENGTH.replace(b": ", b": +"))),
    "a hexadecimal length": (400, post(HOST + LENGTH.replace(b": ", b": 0x"))),
    "an empty length": (400, post(HOST + b"Content-Length:\r\n")),
    "an absurd length": (400, post(HOST + b"Content-Length: %d\r\n" % (2**64 - 1))),
    "a length of sixteen digits": (400, post(HOST + b"Content-Length: %b\r\n" % (b"9" * 16))),
    "a secret for a length": (400, post(HOST + b"Content-Length: sk-LEAKME\r\n")),
    "a space before the colon": (400, post(HOST + LENGTH + b"Authorization : Bearer sk-LEAKME\r\n")),
    "a folded header": (400, post(HOST + b"X-A: b\r\n sk-LEAKME\r\n" + LENGTH)),
    "line feeds": (400, post().replace(b"\r\n", b"\n")),
    "a carriage return in a value": (400, post(HOST + b"X-A: b\rc\r\n" + LENGTH)),
    "a line feed in a value": (400, post(HOST + b"X-A: b\nc\r\n" + LENGTH)),
    "a control in a value": (400, post(HOST + b"Authorization: Bearer sk-LEAKME\x01\r\n" + LENGTH)),
    "a zero byte": (400, post(HOST + b"X-A: b\0c\r\n" + LENGTH)),
    "no name": (400, post(HOST + b": a\r\n" + LENGTH)),
    "no colon": (400, post(HOST + b"sk-LEAKME\r\n" + LENGTH)),
    "two hosts": (400, post(HOST + HOST + LENGTH)),
    "no host": (400, post(LENGTH)),
    "a host that is none": (400, post(b"Host: user@a/c\r\n" + LENGTH)),
    "HTTP/0.9": (505, b"GET /v1/models\r\n\r\n"),
    "HTTP/2 by name": (505, get(b"GET /v1/models HTTP/2.0")),
    "HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "an expectation": (417, post(HOST + LENGTH + b"Expect: 200-ok\r\n")),
    "two expectations": (417, post(HOST + LENGTH + b"Expect: 100-continue, other\r\n")),
    "a fragment": (400, get(b"GET /v1/models#a HTTP/1.1")),
    "a space in the target": (400, get(b"GET /v1/models a HTTP/1.1")),
    "a long header": (400, post(HOST + b"Authorization: sk-LEAKME" + b"x" * 70_000 + b"\r\n" + LENGTH)),
    "a head of 300 KB": (431, post(HOST + (b"X-A: " + b"b" * 30_000 + b"\r\n") * 10 + LENGTH)),
    "a chunk without a size": (400, post(HOST + CHUNKED, b"x\r\n")),
    "a size with a sign": (400, post(HOST + CHUNKED, b"-1\r\n")),
    "a size with a space": (400, post(HOST + CHUNKED, b"5 \r\nhello\r\n0\r\n\r\n")),
    "a size of sixteen digits": (400, post(HOST + CHUNKED, b"1234567890abcdef\r\n")),
    "a chunk that is too long": (400, post(HOST + CHUNKED, b"1\r\nab\r\n0\r\n\r\n")),
    "chunks with line feeds": (400, post(HOST + CHUNKED, CHUNKS.replace(b"\r\n", b"\n"))),
    "a long extension": (400, post(HOST + CHUNKED, b"5;" + b"x" * 20_000)),
    "many trailers": (400, post(HOST + CHUNKED, b"0\r\n" + b"X-T: 1\r\n" * 3_000)),
}
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("name", REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused(
    wire: Wire, name: str, caplog: pytest.LogCaptureFixture, is_first: bool
) -> None:
    """With an end of the connection, and nothing of it is quoted in the log. In OpenAI's shape, unless the
    library answers bytes that it cannot read.
    """
    caplog.set_level(logging.DEBUG)
    status, request = REFUSED[name]
    async with wire.connecting() as client:
        if not is_first:
            assert (await client.ask(post())).status == 200
        await client.send(request + SMUGGLED)
        response = await read_rest(client)
    assert re.match(rb"HTTP/1\.[01] %d " % status, response)
    assert len(re.findall(rb"HTTP/1.\d \d{3} ", response)) == 1
    if not response.startswith(b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain"):
        assert b"connection: close" in response.lower()
        assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert len(wire.upstream.received) == (not is_first)
    assert "LEAKME" not in caplog.text


SERVED = {
    "empty lines first": b"\r\n\r\n\r\n" + post(),
    "an unusual case of chunked": coded(b"CHUNKED"),
    "a tab in a value": post(HOST + b"X-A: b\tc\r\n" + LENGTH),
    "an empty host": post(b"Host:\r\n" + LENGTH),
    "a host of the network": post(b"Host: a_b.internal:8080\r\n" + LENGTH),
    "an offer of HTTP/2": post(HOST + LENGTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    "headers of 60 KB": post(HOST + b"X-A: " + b"b" * 60_000 + b"\r\n" + LENGTH),
    "framing named as options": post(HOST + LENGTH + b"Connection: Content-Length, Host\r\n"),
}


@pytest.mark.parametrize("name", SERVED)
async def test_what_can_be_read_in_one_way_is_framed_anew_and_the_connection_goes_on(
    wire: Wire, name: str
) -> None:
    async with wire.connecting() as client:
        assert (await client.ask(SERVED[name])).status == 200
        assert (await client.ask(post())).status == 200
    first, second = wire.upstream.received
    assert first.body == second.body == WHOLE
    for head in (first.head, second.head):
        assert head.values("content-length") == [b"%d" % len(WHOLE)]
        assert len(head.values("host")) == 1
        assert not any(head.values(key) for key in ("transfer-encoding", "trailer", "x-t", "upgrade"))


async def echo(received: Received, writer: asyncio.StreamWriter) -> None:
    """The target, and the body."""
    writer.write(render_answer(received.target + b" " + received.body))


def make_sized(target: str, body: bytes) -> tuple[bytes, bytes]:
    return render_request(target, body), target.encode() + b" " + body


def make_chunked(target: str, body: bytes) -> tuple[bytes, bytes]:
    pieces = [body[at : at + 100] for at in range(0, len(body), 100)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = f"POST {target} HTTP/1.1\r\nHost: a\r\n".encode() + CHUNKED + b"\r\n"
    return head + framed + b"0\r\n\r\n", target.encode() + b" " + body


def make_bare(target: str) -> tuple[bytes, bytes]:
    return render_request(target, method="GET"), target.encode() + b" "


@pytest.mark.parametrize("size", [1, 3, 17, 100, 1_000])
async def test_requests_in_any_pieces_are_answered_in_order(wire: Wire, size: int) -> None:
    """Also where a body looks like the next request."""
    wire.upstream.script = echo
    wanted = [
        make_sized(CHAT_PATH, b"\x00\xff odd"),
        make_chunked("/v1/files", b"a" * 250),
        make_bare("/v1/embeddings?a"),
        make_sized("/v1/files", make_sized(CHAT_PATH, b"x")[0]),
        make_chunked(CHAT_PATH, make_chunked("/v1/files", b"y")[0]),
        make_sized("/v1/files", b""),
        make_sized(CHAT_PATH, b"b" * 3_000),
    ]
    async with wire.connecting() as client:
        for piece in cut(b"".join(part for part, _ in wanted), size):
            await client.send(piece)
            await asyncio.sleep(0)
        got = [(await client.receive()).body for _ in wanted]
    assert got == [answer for _, answer in wanted]


async def test_many_requests_may_be_sent_ahead(wire: Wire) -> None:
    """More than is held of them: the client is read on as they are answered."""
    wire.upstream.script = echo
    wanted = [make_sized(f"/v1/files/{number}", b"y" * 20_000) for number in range(60)]
    wanted += [make_bare(f"/v1/models/{number}") for number in range(60)]
    wanted += [make_chunked(f"/v1/files/{number}", b"z" * 2_000) for number in range(60)]
    async with wire.connecting() as client, asyncio.TaskGroup() as group:
        group.create_task(client.send(b"".join(sent for sent, _ in wanted)))
        for _, answer in wanted:
            assert (await asyncio.wait_for(client.receive(), SLOW_SECONDS)).body == answer


@pytest.mark.parametrize("path", PATHS)
async def test_large_bodies_leave_the_connection_usable(wire: Wire, path: str) -> None:
    body = make_chat(model="unknown", messages=[{"role": "user", "content": "x" * 5_000_000}])
    async with wire.connecting() as client:
        for _ in range(3):
            assert (await client.ask(render_request(path, body))).status == 200
    assert [seen.body for seen in wire.upstream.received] == [body] * 3


async def test_a_request_that_breaks_off_is_not_sent_as_if_it_were_whole(wire: Wire) -> None:
    chunked, _ = make_chunked("/v1/files", WHOLE)
    for request in (render_chat(WHOLE)[:-5], chunked[:-5], chunked[:-9]):
        async with wire.connecting() as connection:
            await connection.send(request)
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.1)
    assert not any(seen.is_whole for seen in wire.upstream.received)


async def test_trailers_are_dropped_wherever_the_pieces_are_cut(wire: Wire) -> None:
    head, body = post(HOST + CHUNKED, b"1\r\nx\r\n"), b"0\r\nContent-Length: 3\r\nX-T: 1\r\n\r\n"
    head = head.replace(CHAT_PATH.encode(), b"/v1/files")
    for at in range(1, len(body)):
        async with wire.connecting() as client:
            await client.send(head + body[:at])
            await asyncio.sleep(0)
            await client.send(body[at:] + SMUGGLED)
            assert (await client.receive()).status == 200
            assert await read_rest(client) == b""
    assert {seen.body for seen in wire.upstream.received} == {b"x"}


async def test_http_1_0_and_clients_that_want_to_close_are_heard(wire: Wire) -> None:
    asked = b"GET /v1/models HTTP/1.%d\r\nHost: a\r\n%b\r\n"
    for version, option, stays in (
        (0, b"", False),
        (0, b"Connection: keep-alive\r\n", True),
        (1, b"Connection: close\r\n", False),
        (1, b"", True),
    ):
        async with wire.connecting() as client:
            got = await client.ask(asked % (version, option))
            assert (got.status, got.body) == (200, b"{}")
            assert got.head.values("connection") == ([b"close"] if not stays else [b"keep-alive"][version:])
            assert stays or await read_rest(client) == b""
            assert not stays or (await client.ask(asked % (version, option))).status == 200


async def test_what_the_gateway_says_itself_is_dated_json(wire: Wire) -> None:
    got = await wire.ask(render_request("/v1/../x", method="GET"))
    names = [name for name, _ in got.head.headers]
    assert got.head.line == b"HTTP/1.1 400 Bad Request"
    assert names[:3] == [b"Content-Type", b"Date", b"Content-Length"]
    assert got.head.values("content-type") == [b"application/json"]
    assert re.fullmatch(rb"\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT", got.head.values("date")[0])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bounded_wire() -> AsyncIterator[Wire]:
    bounds = "{head_bytes: 10000, head_seconds: 0.5, stall_seconds: 0.5, connections_per_address: 5}"
    async with opening_wire(more=f"bounds: {bounds}\n") as wire:
        yield wire


@pytest_asyncio.fixture(loop_scope="module")
async def bounded(bounded_wire: Wire) -> Wire:
    """Connections of earlier tests are gone."""
    bounded_wire.reset()
    async with asyncio.timeout(SLOW_SECONDS):
        while (await bounded_wire.chat(WHOLE)).status != 200:
            await asyncio.sleep(0.01)
    bounded_wire.reset()
    return bounded_wire


@pytest.mark.parametrize("cut", [1, 9_999, 10_001, 20_000])
async def test_a_head_that_is_too_large_is_refused(bounded: Wire, cut: int) -> None:
    head = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + (b"X-Some: %b\r\n" % (b"1" * 100)) * 200 + b"\r\n"
    async with bounded.connecting() as client:
        await client.send(head[:cut])
        await asyncio.sleep(0.02)
        await client.send(head[cut:])
        assert (await read_rest(client)).startswith(b"HTTP/1.1 431 ")
    assert bounded.upstream.received == []


@pytest.mark.parametrize(
    "before", [b"", post(), post(HOST + CHUNKED, CHUNKS)], ids=["first", "later", "chunked"]
)
@pytest.mark.parametrize("beginning", [b"G", post()[:-1].partition(b"\r\n\r\n")[0], b"\r\n\r\nGET / HT"])
async def test_a_head_that_does_not_end_in_time_is_refused(
    bounded: Wire, before: bytes, beginning: bytes
) -> None:
    async with bounded.connecting() as client:
        await client.send(before + beginning)
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", await read_rest(client))
    assert statuses == ([b"200", b"408"] if before else [b"408"])


async def test_an_unused_connection_may_stay(bounded: Wire) -> None:
    async with bounded.connecting() as unused, bounded.connecting() as used:
        assert (await used.ask(post() + b"\r\n")).status == 200
        async with bounded.connecting() as late:
            await late.send(b"GET")
            # By now the time for a head is over.
            assert b" 408 " in await read_rest(late)
        for client in (unused, used):
            assert (await client.ask(post())).status == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("begun", [post()[:-5], post(HOST + CHUNKED, b"5\r\n{"), post(HOST + LENGTH, b"")])
async def test_a_body_that_stops_coming_ends_its_connection(bounded: Wire, begun: bytes, path: str) -> None:
    async with bounded.connecting() as client:
        await client.send(begun.replace(CHAT_PATH.encode(), path.encode()))
        got = await asyncio.wait_for(client.receive(), SLOW_SECONDS)
        assert (got.status, got.head.values("connection")) == (408, [b"close"])
        assert await read_rest(client) == b""


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_has_sent_everything_may_wait_for_long(bounded: Wire, path: str) -> None:
    may_answer = asyncio.Event()

    async def wait(_: Received, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        writer.write(render_answer(b"late"))

    bounded.upstream.script = wait
    async with bounded.connecting() as client, bounded.connecting() as other:
        await client.send(render_request(path, WHOLE))
        await wait_until(lambda: len(bounded.upstream.received) == 1)
        # A client that stopped sending was cut off meanwhile.
        await other.send(post()[:-5])
        assert b" 408 " in await read_rest(other)
        may_answer.set()
        assert (await client.receive()).body == b"late"


async def test_a_client_that_does_not_read_its_response_is_cut_off(bounded: Wire) -> None:
    bounded.upstream.script = writing(*render_chunks([b"data: " + b"x" * MEBIBYTE + b"\n\n"] * 200))
    async with bounded.connecting() as client:
        await client.send(render_chat(STREAMED))
        await wait_until(lambda: any(seen.hung_up_at for seen in bounded.upstream.received), SLOW_SECONDS)


async def test_further_connections_are_refused_while_those_in_use_go_on(
    bounded: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    may_answer = asyncio.Event()

    async def wait(_: Received, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        writer.write(render_answer())

    bounded.upstream.script = wait
    async with AsyncExitStack() as exits:
        clients = [await exits.enter_async_context(bounded.connecting()) for _ in range(5)]
        for client in clients:
            await client.send(post())
        await wait_until(lambda: len(bounded.upstream.received) == 5)
        for _ in range(3):
            got = await bounded.chat(WHOLE)
            assert (got.status, got.head.values("retry-after")) == (503, [b"1"])
            assert json.loads(got.body)["error"]["type"] == "server_error"
        may_answer.set()
        assert [(await client.receive()).status for client in clients] == [200] * 5
    # Said once a minute.
    assert sum("too many connections" in message for message in caplog.messages) <= 1


async def test_unused_connections_make_room_for_new_ones() -> None:
    async with opening_wire(more="bounds: {connections: 3}\n") as wire, AsyncExitStack() as exits:
        used = await exits.enter_async_context(connecting(wire.port))
        wire.upstream.script = writing(then="hang")
        await used.send(post())
        await wait_until(lambda: len(wire.upstream.received) == 1)
        wire.upstream.script = writing(render_answer())
        for _ in range(5):
            client = await exits.enter_async_context(connecting(wire.port))
            assert (await client.ask(post())).status == 200
        assert wire.upstream.received[0].hung_up_at is None


async def test_a_stop_waits_for_requests_under_way_and_closes_their_connections() -> None:
    may_answer = asyncio.Event()

    async def begin(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(render_answer(b"{} ")[:-1])
        await may_answer.wait()
        writer.write(b"\n")

    async with (
        opening_wire() as wire,
        connecting(wire.port) as begun,
        connecting(wire.port) as unused,
        connecting(wire.port) as sending,
    ):
        assert (await unused.ask(post())).status == 200
        await sending.send(post() + post()[:-10])
        first = await sending.receive()
        assert (first.status, first.head.values("connection")) == (200, [])
        wire.upstream.script = begin
        await begun.send(post())
        await read_head(begun.reader)
        stopping = asyncio.create_task(wire.product.stop())
        await asyncio.sleep(0.05)
        wire.upstream.script = writing(render_answer())
        await unused.send(post())
        await sending.send(post()[-10:])
        # What had begun is answered, and what comes now is left to another gateway.
        for client, status in ((sending, 200), (unused, 503)):
            last = await client.receive()
            assert (last.status, last.head.values("connection")) == (status, [b"close"])
            assert await read_rest(client) == b""
        assert not stopping.done()
        may_answer.set()
        assert await read_rest(begun) == b"{}\n"
        await asyncio.wait_for(stopping, SLOW_SECONDS)


async def test_a_stop_does_not_wait_for_ever() -> None:
    async with opening_wire(more="drain_seconds: 0.1\n") as wire, connecting(wire.port) as client:
        wire.upstream.script = writing(*render_chunks([b"half"])[:-1], then="hang")
        await client.send(render_request("/v1/other", WHOLE))
        await client.reader.readuntil(b"half")
        await asyncio.wait_for(wire.product.stop(), SLOW_SECONDS)
        assert not (await read_rest(client)).endswith(b"0\r\n\r\n")


async def test_one_connection_may_serve_requests_of_both_kinds(wire: Wire) -> None:
    async with wire.connecting() as connection:
        for number in range(10):
            wire.upstream.script = writing(render_answer(b'{"n":%d}' % number))
            assert (await connection.ask(render_chat(WHOLE))).body == b'{"n":%d}' % number
            assert (await connection.ask(render_request("/v1/models", method="GET"))).status == 200
    assert (await ask(wire.port, post())).status == 200
