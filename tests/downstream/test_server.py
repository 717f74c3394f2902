"""Requests come out in order however they are cut; what is not HTTP is refused; the port drains."""

import asyncio
import gc
import json
import logging
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory_budget import MemoryBudget
from gateway.core.errors import RequestRefused
from gateway.downstream.gate import PortBounds
from gateway.downstream.request import Request, read_body, stream_body
from gateway.downstream.response import Response, make_local_head, send_local_response
from gateway.downstream.server import Server
from gateway.downstream.shared_port import SharedPort, bind_port
from gateway.downstream.tally import Tally
from gateway.headers import ResponseHead
from tests.builders.downstream import Line, settle
from tests.examples import examples
from tests.toy.running import wait_until
from tests.wire_through.raw import Connection, connecting

MAX_BYTES = 1 << 24
SLOW_SECONDS = 30
BOUNDS = PortBounds()
Seen = tuple[str, str, bytes | None, str]


class Recorder:
    """Records requests. It reads `/whole` first, streams `/stream`, and ignores the body of `/unread`."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._busy: set[asyncio.Transport | None] = set()

    async def respond(self, request: Request) -> Response:
        line = request.head
        assert request.transport not in self._busy, "two requests of one connection at a time"
        self._busy.add(request.transport)
        await asyncio.sleep(0)
        body: bytes | None = None
        if line.target == "/whole":
            body = (await read_body(request, MAX_BYTES, MemoryBudget(1 << 30).open(), Lanes())).raw
        elif line.target == "/stream":
            stream = stream_body(request)
            body = stream if isinstance(stream, bytes | None) else b"".join([piece async for piece in stream])
        self._busy.discard(request.transport)
        self.seen.append((line.method, line.target, body, line.headers.get("X-Name", "")))
        return send_local_response(request, 200, json.dumps(line.headers.get("X-Name", "")).encode())


def sized(name: str, target: str, body: bytes, *headers: str) -> tuple[bytes, Seen]:
    lines = [
        f"POST {target} HTTP/1.1",
        "Host: a",
        f"X-Name: {name}",
        f"content-length: {len(body)}",
        *headers,
    ]
    sent = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    # An empty body that is only relayed counts as none.
    seen = None if target == "/unread" or (target == "/stream" and not body) else body
    return sent, ("POST", target, seen, name)


def chunked(name: str, target: str, body: bytes) -> tuple[bytes, Seen]:
    head = f"POST {target} HTTP/1.1\r\nHost: a\r\nX-Name: {name}\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [body[at : at + 100] for at in range(0, len(body), 100)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head.encode() + framed + b"0\r\n\r\n", (
        "POST",
        target,
        None if target == "/unread" else body,
        name,
    )


def bare(name: str, target: str) -> tuple[bytes, Seen]:
    seen = b"" if target == "/whole" else None
    head = f"GET {target} HTTP/1.1\r\nHost: a\r\nX-Name: {name}\r\n\r\n"
    return head.encode(), ("GET", target, seen, name)


names = st.sampled_from(["a", "b"])
targets = st.sampled_from(["/whole", "/stream", "/unread"])
bodies = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(0, 3_000)),
    # A body that looks like the next request.
    st.builds(lambda name, target, body: sized(name, target, body)[0], names, targets, st.binary(max_size=9)),
)
requests = st.one_of(
    st.builds(sized, names, targets, bodies),
    st.builds(sized, names, targets, bodies),
    st.builds(sized, names, targets, bodies, st.just("Expect: 100-continue")),
    st.builds(chunked, names, targets, bodies),
    st.builds(bare, names, targets),
)


@examples(60, exhaustive=300)
@given(st.lists(requests, min_size=1, max_size=8), st.data())
async def test_any_requests_in_any_pieces_come_out_in_order(
    wanted: list[tuple[bytes, Seen]], data: st.DataObject
) -> None:
    sent = b"".join(part for part, _ in wanted)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12), label="cuts"))
    waits = data.draw(st.lists(st.integers(0, 6), min_size=len(cuts) + 1, max_size=len(cuts) + 1))
    recorder = Recorder()
    line = Line(connection := Server(recorder.respond, BOUNDS).make_connection())
    for start, end, wait in zip([0, *cuts], [*cuts, len(sent)], waits, strict=True):
        if start < end:
            connection.data_received(sent[start:end])
        for _ in range(wait):
            await asyncio.sleep(0)
    async with asyncio.timeout(SLOW_SECONDS):
        while line.responses < len(wanted):
            await asyncio.sleep(0)
    assert recorder.seen == [seen for _, seen in wanted]
    responses = line.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [json.loads(part.partition(b"\r\n\r\n")[2]) for part in responses] == [s[3] for _, s in wanted]
    await settle()
    assert not line.is_closed
    assert not line.is_paused
    line.close()
    await asyncio.sleep(0)


@asynccontextmanager
async def listening(
    respond: Callable[[Request], Awaitable[Response | None]], bounds: PortBounds = BOUNDS
) -> AsyncIterator[Server]:
    server = Server(respond, bounds)
    await server.open("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


async def read_head(client: Connection) -> bytes:
    async with asyncio.timeout(SLOW_SECONDS):
        return await client.reader.readuntil(b"\r\n\r\n")


async def read_response(client: Connection) -> bytes:
    """Head and body of the next response, which has a Content-Length."""
    head = await read_head(client)
    async with asyncio.timeout(SLOW_SECONDS):
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head + await client.reader.readexactly(length)


async def read_rest(client: Connection) -> bytes:
    async with asyncio.timeout(SLOW_SECONDS):
        return await client.reader.read()


@pytest.mark.parametrize("target", ["/whole", "/stream", "/unread"])
@pytest.mark.parametrize("size", [300_000, 5_000_000])
async def test_large_bodies_read_or_not_leave_the_connection_usable(target: str, size: int) -> None:
    recorder = Recorder()
    async with listening(recorder.respond) as server, connecting(server.port) as client:
        for _ in range(3):
            await client.send(sized("n", target, b"x" * size)[0])
            assert (await read_response(client)).startswith(b"HTTP/1.1 200 OK")
    wanted = None if target == "/unread" else b"x" * size
    assert [seen[2] for seen in recorder.seen] == [wanted] * 3


async def test_a_client_that_expects_a_continue_before_each_body_gets_one_each_time() -> None:
    recorder = Recorder()
    async with listening(recorder.respond) as server, connecting(server.port) as client:
        for body in (b"a" * 10, b"b" * 20, b"c" * 30):
            sent = sized("n", "/whole", body, "Expect: 100-continue")[0]
            await client.send(sent[: -len(body)])
            assert await read_head(client) == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(body)
            assert (await read_response(client)).startswith(b"HTTP/1.1 200 OK")
    assert [seen[2] for seen in recorder.seen] == [b"a" * 10, b"b" * 20, b"c" * 30]


async def test_many_requests_may_be_sent_ahead() -> None:
    recorder = Recorder()
    async with listening(recorder.respond) as server, connecting(server.port) as client:
        wanted = [sized(f"{number}", "/whole", b"y" * 20_000) for number in range(100)]
        wanted += [bare(f"{number}", "/whole") for number in range(100)]
        wanted += [chunked(f"{number}", "/whole", b"z" * 2_000) for number in range(100)]
        async with asyncio.TaskGroup() as group:
            group.create_task(client.send(b"".join(sent for sent, _ in wanted)))
            for _ in wanted:
                assert (await read_response(client)).startswith(b"HTTP/1.1 200 OK")
    assert recorder.seen == [seen for _, seen in wanted]


@pytest.mark.parametrize(
    "junk",
    [
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\nHost: a\n\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: sk-LEAKME\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
async def test_bytes_that_are_not_http_are_refused_with_an_openai_error(
    junk: bytes, is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    recorder = Recorder()
    async with listening(recorder.respond) as server, connecting(server.port) as client:
        if not is_first:
            await client.send(sized("n", "/whole", b"x")[0])
            await read_response(client)
        await client.send(junk)
        head, _, body = (await read_rest(client)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert len(recorder.seen) == (not is_first)
    assert "LEAKME" not in caplog.text
    assert re.search(r"^INFO .* (Bad|Invalid|Line)\w+ on a connection$", caplog.text, re.MULTILINE)


@pytest.mark.parametrize("target", ["/whole", "/stream"])
async def test_a_malformed_chunk_ends_the_wait_for_the_body(target: str) -> None:
    broken: list[RequestRefused] = []

    async def respond(request: Request) -> Response:
        try:
            return await Recorder().respond(request)
        except RequestRefused as error:
            broken.append(error)
            return send_local_response(request, 400, b"{}")

    async with listening(respond) as server, connecting(server.port) as client:
        head = f"POST {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        await client.send(head.encode())
        await asyncio.sleep(0.05)
        await client.send(b"no size\r\n")
        assert (await read_rest(client)).startswith(b"HTTP/1.1 400")
    assert len(broken) == 1


@pytest.mark.parametrize("has_handler_ended", [True, False])
async def test_a_response_without_its_end_is_broken_off(has_handler_ended: bool) -> None:
    is_over = asyncio.Event()

    async def respond(request: Request) -> Response:
        half = Response(ResponseHead(200, "OK", []), request)
        half.send(b"half")
        await is_over.wait()
        return half

    async with (
        listening(respond) as server,
        connecting(server.port) as client,
        connecting(server.port) as older,
    ):
        await client.send(bare("n", "/")[0])
        await older.send(b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        assert b"200 OK" in await read_head(client) and b"200 OK" in await read_head(older)
        if has_handler_ended:
            is_over.set()
        else:
            await server.close()
        assert not (await read_rest(client)).endswith(b"0\r\n\r\n")
        # Without chunks only a RST tells that the response is not whole.
        with pytest.raises(ConnectionResetError):
            await read_rest(older)


async def test_a_slow_reader_gets_its_response_though_the_port_closes() -> None:
    async def respond(request: Request) -> Response:
        return send_local_response(request, 200, b"x" * 10_000_000)

    async with listening(respond) as server, connecting(server.port) as client:
        await client.send(bare("n", "/")[0])
        await read_head(client)
        await server.drain(SLOW_SECONDS)
        await server.close()
        await asyncio.sleep(0.1)
        assert len(await read_rest(client)) == 10_000_000


class Held:
    """An object that lives as long as the handler that made it."""


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Without the collector, only objects without references go."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
async def test_a_client_that_hangs_up_during_an_upload_leaves_nothing_in_memory() -> None:
    held: list[weakref.ref[Held]] = []
    begun = asyncio.Event()

    async def respond(request: Request) -> Response | None:
        begun.set()
        own = Held()
        held.append(weakref.ref(own))
        await read_body(request, MAX_BYTES, MemoryBudget(1 << 30).open(), Lanes())
        return None

    async with listening(respond) as server:
        for target in ("/whole", "/other"):
            async with connecting(server.port) as client:
                begun.clear()
                await client.send(sized("n", target, b"x" * 1_000_000)[0][:-10])
                await asyncio.wait_for(begun.wait(), SLOW_SECONDS)
        await wait_until(lambda: not any(reference() for reference in held))


OFFER = "Connection: Upgrade\r\nUpgrade: "


@pytest.mark.parametrize(
    "head",
    [
        f"GET / HTTP/1.1\r\nHost: a\r\n{OFFER}websocket\r\n\r\n",
        f"POST / HTTP/1.1\r\nHost: a\r\n{OFFER}h2c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_a_connection_ends_behind_an_offer_of_another_protocol(head: str) -> None:
    async with listening(Recorder().respond) as server, connecting(server.port) as client:
        await client.send(head.encode() + bare("n", "/")[0])
        responses = await read_rest(client)
    assert responses.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in responses


@pytest.mark.parametrize(
    "head",
    [
        f"GET / HTTP/1.1\r\nHost: a\r\n{OFFER}h2c\r\n\r\n",
        f"POST / HTTP/1.1\r\nHost: a\r\n{OFFER}h2c\r\nContent-Length: 2\r\n\r\n{{}}",
        f"POST / HTTP/1.1\r\nHost: a\r\n{OFFER}websocket\r\nContent-Length: 2\r\n\r\n{{}}",
    ],
)
async def test_a_connection_goes_on_behind_an_offer_that_is_not_accepted(head: str) -> None:
    recorder = Recorder()
    async with listening(recorder.respond) as server, connecting(server.port) as client:
        await client.send(head.encode())
        await wait_until(lambda: bool(recorder.seen))
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        responses = await read_rest(client)
    assert responses.count(b"HTTP/1.1 200 OK") == 2
    assert responses.count(b"Connection: close") == 1


@pytest.mark.parametrize("length", [str(2**64 - 1), "9" * 16, "0" * 5_000 + "5"])
@pytest.mark.parametrize("cut", [10, 10_000])
@pytest.mark.parametrize("before", [b"", sized("n", "/whole", b"x")[0]])
async def test_an_absurd_length_is_refused(
    length: str, cut: int, before: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.head_parser")
    recorder = Recorder()
    async with listening(recorder.respond) as server, connecting(server.port) as client:
        head = f"POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode()
        await client.send(before + head[:cut])
        await asyncio.sleep(0.05)
        await client.send(head[cut:])
        assert b"HTTP/1.1 400" in await read_rest(client)
        await asyncio.wait_for(server.drain(2 * SLOW_SECONDS), SLOW_SECONDS)
    assert len(recorder.seen) == bool(before)
    assert any(message.endswith(" on a connection") for message in caplog.messages)


async def test_the_bytes_that_are_sent_ahead_are_bounded() -> None:
    sent = bare("n", "/")[0]
    many = sent * (100_000 // len(sent))
    fed = 0

    async def respond(request: Request) -> Response:
        await asyncio.sleep(0)
        return send_local_response(request, 200, b"{}")

    line = Line(connection := Server(respond, BOUNDS).make_connection())
    for _ in range(40_000):
        if not line.is_paused:
            connection.data_received(many)
            fed += len(many)
        await asyncio.sleep(0)
        assert fed - line.responses * len(sent) < BOUNDS.head_bytes + 2 * len(many)
    assert fed > 400_000
    line.close()
    await asyncio.sleep(0)


async def test_a_client_that_hangs_up_cancels_its_handler() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def respond(request: Request) -> Response | None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return None

    async with listening(respond) as server:
        async with connecting(server.port) as client:
            await client.send(bare("n", "/")[0])
            await asyncio.wait_for(begun.wait(), SLOW_SECONDS)
            assert not ended.is_set()
        await asyncio.wait_for(ended.wait(), SLOW_SECONDS)


async def test_draining_waits_for_requests_under_way_and_closes_their_connections() -> None:
    recorder, late = Recorder(), list[bool]()

    async def respond(request: Request) -> Response:
        late.append(request.is_late)
        return await recorder.respond(request)

    async with (
        listening(respond) as server,
        connecting(server.port) as client,
        connecting(server.port) as other,
    ):
        sent = sized("n", "/whole", b"x" * 1_000)[0]
        await other.send(sent)
        replies = await read_response(other)
        await client.send(sent + sent[:-10])
        replies += await read_response(client)
        assert b"connection: close" not in replies.lower()
        await wait_until(lambda: len(late) == 3)
        draining = asyncio.create_task(server.drain(SLOW_SECONDS))
        await asyncio.sleep(0.05)
        assert not draining.done()
        await other.send(sent)
        assert b"Connection: close" in await read_response(other)
        await client.send(sent[-10:])
        assert b"Connection: close" in await read_response(client)
        assert await read_rest(client) == b""
        await asyncio.wait_for(draining, SLOW_SECONDS)
    assert late == [False, False, False, True]


async def test_a_response_that_had_begun_before_draining_is_the_last_of_its_connection() -> None:
    going_on = asyncio.Event()

    async def respond(request: Request) -> Response:
        response = Response(make_local_head(200, 2, {}), request)
        response.send(b"{")
        await going_on.wait()
        response.finish(b"}")
        return response

    async with listening(respond) as server, connecting(server.port) as client:
        await client.send(bare("n", "/")[0])
        await client.reader.readuntil(b"{")
        draining = asyncio.create_task(server.drain(SLOW_SECONDS))
        await asyncio.sleep(0)
        going_on.set()
        assert await read_rest(client) == b"}"
        await asyncio.wait_for(draining, SLOW_SECONDS)


async def test_a_request_that_came_just_before_draining_gets_its_response() -> None:
    recorder = Recorder()
    server = Server(recorder.respond, BOUNDS)
    line = Line(connection := server.make_connection())
    await asyncio.sleep(0.01)
    connection.data_received(bare("n", "/")[0])
    await server.drain(SLOW_SECONDS)
    await server.close()
    assert line.written.startswith(b"HTTP/1.1 200 OK")
    assert b"Connection: close" in line.written


async def test_draining_does_not_wait_forever() -> None:
    async def respond(request: Request) -> Response | None:
        await asyncio.sleep(60)
        return None

    async with listening(respond) as server, connecting(server.port) as client:
        await client.send(bare("n", "/")[0])
        await asyncio.sleep(0.05)
        await asyncio.wait_for(server.drain(0.05), SLOW_SECONDS)
        await asyncio.wait_for(server.close(), SLOW_SECONDS)
        assert await read_rest(client) == b""


async def test_a_server_that_retires_answers_once_more_on_each_connection_and_closes_unused_ones() -> None:
    recorder = Recorder()
    sent = bare("n", "/")[0]
    async with (
        listening(recorder.respond) as server,
        connecting(server.port) as asking,
        connecting(server.port) as unused,
    ):
        for client in (asking, unused):
            await client.send(sent)
            assert b"connection: close" not in (await read_response(client)).lower()
        server.retire()
        line = Line(beginning := server.make_connection())
        beginning.data_received(sent[:-5])
        await asking.send(sent)
        answer = await read_response(asking)
        assert answer.startswith(b"HTTP/1.1 200 ") and b"Connection: close" in answer
        assert await read_rest(asking) == b""
        server.close_unused()
        assert await read_rest(unused) == b""
        beginning.data_received(sent[-5:])
        await wait_until(lambda: b"Connection: close" in line.written)
        assert line.written.startswith(b"HTTP/1.1 200 ")


async def test_servers_that_share_a_port_answer_until_they_stop_listening() -> None:
    recorders, tally = [Recorder(), Recorder()], Tally.create(2)
    (listening_socket,) = await bind_port("127.0.0.1", 0)
    servers = [Server(recorder.respond, BOUNDS) for recorder in recorders]
    for worker, server in enumerate(servers):
        server.open_shared(SharedPort([listening_socket.dup()], tally, worker))
    port = listening_socket.getsockname()[1]
    assert [server.port for server in servers] == [port, port]
    async with connecting(port) as first, connecting(port) as second:
        for client in (first, second):
            await client.send(bare("n", "/")[0])
            await read_response(client)
        assert [len(recorder.seen) for recorder in recorders] == [1, 1]
    servers[0].stop_listening()
    async with connecting(port) as third:
        await third.send(bare("n", "/")[0])
        await read_response(third)
    assert [len(recorder.seen) for recorder in recorders] == [1, 2]
    for server in servers:
        await server.close()
    listening_socket.close()
    tally.close()


async def test_unused_connections_are_closed() -> None:
    recorder = Recorder()
    going_on = asyncio.Event()

    async def respond(request: Request) -> Response:
        await going_on.wait()
        return await recorder.respond(request)

    async with (
        listening(respond, PortBounds(idle_seconds=1)) as server,
        connecting(server.port) as silent,
        connecting(server.port) as used,
    ):
        await used.send(bare("n", "/")[0])
        assert await read_rest(silent) == b""
        # Its request took longer than a connection may be unused; it counts from its end on.
        going_on.set()
        await read_response(used)
        await used.send(bare("n", "/")[0])
        await read_response(used)


async def test_a_handler_that_fails_breaks_the_connection_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def respond(request: Request) -> Response | None:
        raise ValueError("what went wrong")

    async with listening(respond) as server, connecting(server.port) as client:
        await client.send(bare("n", "/")[0])
        assert await read_rest(client) == b""
    assert "what went wrong" in caplog.text
