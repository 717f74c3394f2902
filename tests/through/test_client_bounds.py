"""What a client may cost: slow bodies, many connections, tiny chunks, and what is sent behind chunks."""

import asyncio
import gc
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import repeat, takewhile

import pytest
import pytest_asyncio
from aiohttp import StreamReader

from tests.toy.raw import Connection, Received, connecting, render_answer, render_request, writing
from tests.toy.running import wait_until
from tests.toy.wire import CHAT_PATH, PATHS, WHOLE, Wire, opening_wire, render_chat

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_SECONDS = 30.0
CHUNKED = b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE)
AHEAD = b"GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
HEALTH = "/healthz", "/readyz"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bounded_wire() -> AsyncIterator[Wire]:
    async with opening_wire(more="bounds: {stall_seconds: 0.5, connections_per_address: 8}\n") as wire:
        yield wire


@pytest_asyncio.fixture(loop_scope="module")
async def bounded(bounded_wire: Wire) -> Wire:
    """Connections of earlier tests are gone."""
    bounded_wire.reset()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await bounded_wire.chat(WHOLE)).status != 200:
            await asyncio.sleep(0.01)
    bounded_wire.reset()
    return bounded_wire


async def read_rest(client: Connection) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await client.reader.read()


async def read_if_any(client: Connection) -> bytes:
    """The same where the client may still be sending, and so find its connection reset."""
    try:
        return await read_rest(client)
    except ConnectionError:
        return b""


# Bodies


async def drip(client: Connection, head: bytes, pieces: Iterator[bytes]) -> None:
    """Never silent for long, and never quick."""
    await client.send(head)
    # The gateway may close it.
    with suppress(ConnectionError):
        for piece in pieces:
            await client.send(piece)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_chunked", [True, False], ids=["chunks", "length"])
async def test_a_body_that_drips_is_given_up_and_its_connection_closed(
    bounded: Wire, path: str, is_chunked: bool
) -> None:
    head = CHUNKED % path.encode() if is_chunked else render_request(path, b"x" * 100_000)[:-100_000]
    async with bounded.connecting() as client:
        piece = b"1\r\nx\r\n" if is_chunked else b"x"
        receiving = asyncio.create_task(client.receive())
        await drip(client, head, takewhile(lambda _: not receiving.done(), repeat(piece, 1_000)))
        got = await asyncio.wait_for(receiving, PATIENCE_SECONDS)
        assert (got.status, got.head.values("connection")) == (408, [b"close"])
        assert await read_if_any(client) == b""


async def test_a_slow_body_that_keeps_coming_is_read_to_its_end(bounded: Wire) -> None:
    """Three times as long as a client may be silent, at some ten kilobytes a second."""
    body = b"x" * 15_000
    async with bounded.connecting() as client:
        pieces = (body[at : at + 500] for at in range(0, len(body), 500))
        await drip(client, render_request("/v1/other", body)[: -len(body)], pieces)
        assert (await client.receive()).status == 200
    assert bounded.upstream.received[0].body == body


async def test_a_body_that_the_upstream_is_slow_to_take_is_not_its_clients_fault(bounded: Wire) -> None:
    bounded.upstream.reads_bodies = False
    may_go_on = asyncio.Event()

    async def wait(_: Received, writer: asyncio.StreamWriter) -> None:
        await may_go_on.wait()
        writer.write(render_answer())

    bounded.upstream.script = wait
    body = b"x" * 30_000_000
    async with bounded.connecting() as client, bounded.connecting() as other:
        sending = asyncio.create_task(client.send(render_request("/v1/other", body)))
        await wait_until(lambda: len(bounded.upstream.received) == 1)
        # A client that is silent is given up meanwhile.
        await other.send(render_chat(WHOLE)[:-5])
        assert b" 408 " in await read_rest(other)
        assert not sending.done()
        may_go_on.set()
        assert (await client.receive()).status == 200
        sending.cancel()


async def test_a_stranger_is_refused_before_the_body_comes() -> None:
    async with opening_wire(more="tenants: [{name: a, keys: [sk-a]}]\n") as wire:
        for expectation in ((), (("Expect", "100-continue"),)):
            async with wire.connecting() as client:
                request = render_request(CHAT_PATH, WHOLE, [("Authorization", "Bearer sk-b"), *expectation])
                await client.send(request[: -len(WHOLE)])
                assert (await asyncio.wait_for(client.receive(), PATIENCE_SECONDS)).status == 401


@pytest.mark.parametrize(("clients", "chunks", "questions"), [(1, 300_000, 20), (8, 20_000, 10)])
async def test_the_smallest_chunks_keep_nobody_waiting(clients: int, chunks: int, questions: int) -> None:
    """So many questions are asked and answered meanwhile. The smaller bodies come with their heads."""
    request = CHUNKED % b"/v1/other" + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n"
    async with opening_wire() as wire, wire.connecting() as other:
        answering = [asyncio.create_task(wire.ask(request)) for _ in range(clients)]
        for _ in range(questions):
            assert (await other.ask(render_request("/healthz", method="GET"))).status == 200
        assert not any(each.done() for each in answering)
        assert [(await each).status for each in answering] == [200] * clients
        assert [len(seen.body) for seen in wire.upstream.received] == [chunks] * clients


async def go_slowly(turns: int) -> None:
    """As on a busy machine: each of so many turns of the event loop takes longer than a head may."""
    for _ in range(turns):
        block()
        await asyncio.sleep(0)


def block() -> None:
    time.sleep(0.1)


async def test_a_head_that_is_late_and_cannot_be_parsed_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The library is about to answer when the bound ends what can be written."""
    async with opening_wire(more="bounds: {head_seconds: 0.05}\n") as wire:
        for turns in range(4):
            async with wire.connecting() as client:
                await go_slowly(turns)
                await client.send(b"GET /\x01 HTTP/1.1\r\n")
                await go_slowly(6)
                # A client that is slow itself may find its connection reset.
                assert re.match(rb"$|HTTP/1\.[01] 40[08] ", await read_if_any(client))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# Connections


@asynccontextmanager
async def filling(wire: Wire, count: int) -> AsyncIterator[None]:
    """So many connections whose bodies drip."""
    async with AsyncExitStack() as exits:
        clients = [await exits.enter_async_context(connecting(wire.port)) for _ in range(count)]
        head = render_request(CHAT_PATH, b"x" * 100_000)[:-100_000]
        tasks = [asyncio.create_task(drip(client, head, iter([b"x"] * 1_000))) for client in clients]
        await asyncio.sleep(0.1)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_health_is_told_beyond_the_bounds() -> None:
    """Nothing else is, and a connection that says nothing hears so, too."""
    async with (
        opening_wire(more="bounds: {connections_per_address: 8}\n") as wire,
        filling(wire, 8),
        connecting(wire.port) as silent,
    ):
        # More of them than may wait at a time.
        async with AsyncExitStack() as exits:
            for _ in range(100):
                await exits.enter_async_context(connecting(wire.port))
            for path in HEALTH:
                got = await wire.ask(render_request(path, method="GET"))
                assert (got.status, got.head.values("connection")) == (200, [b"close"])
        for request in (
            render_chat(WHOLE),
            render_request("/v1/models", method="GET"),
            render_request("/healthzz", method="GET"),
            render_request("/healthz", b"x"),
        ):
            got = await wire.ask(request)
            assert (got.status, got.head.values("retry-after")) == (503, [b"1"])
        assert b" 503 " in await read_rest(silent)
    assert wire.upstream.received == []


async def test_what_follows_a_question_for_health_beyond_the_bounds_is_not_read() -> None:
    async with (
        opening_wire(more="bounds: {connections_per_address: 2}\n") as wire,
        filling(wire, 2),
        connecting(wire.port) as client,
    ):
        await client.send(render_request("/healthz", method="GET") + render_request("/v1/x", method="GET"))
        answers = await read_rest(client)
    assert answers.startswith(b"HTTP/1.1 200 ") and answers.count(b"HTTP/1.1 ") == 1
    assert wire.upstream.received == []


# Behind a chunked body


@pytest.mark.parametrize("path", PATHS)
async def test_plain_chunks_leave_the_connection_to_the_next_request(wire: Wire, path: str) -> None:
    request = CHUNKED % path.encode() + PLAIN
    async with wire.connecting() as client:
        for ahead in (b"", request, b""):
            assert (await client.ask(request + ahead)).status == 200
        assert (await client.receive()).status == 200
    assert [seen.body for seen in wire.upstream.received] == [WHOLE] * 4


UNCLEAR = {
    "an extension": PLAIN.replace(b"\r\n", b';a="b c"\r\n', 1),
    "an extension of the last chunk": PLAIN.replace(b"\r\n0\r\n", b"\r\n0;a\r\n"),
    "a long extension": PLAIN.replace(b"\r\n0\r\n", b"\r\n0;" + b"a" * 4_000 + b"\r\n"),
    "an extension that looks like an end": PLAIN.replace(b"\r\n0\r\n\r\n", b"\r\n0;0\r\nX: 0\r\n\r\n"),
    "a trailer": PLAIN[:-2] + b"X-T: 1\r\n\r\n",
    "a length": PLAIN[:-2] + b"Content-Length: 5\r\n\r\n",
    "a coding": PLAIN[:-2] + b"Transfer-Encoding: chunked\r\n\r\n",
    "a way of the gateway": PLAIN[:-2] + b"x-gateway-bypass: 1\r\n\r\n",
    "many zeros and a trailer": PLAIN.replace(b"\r\n0\r\n", b"\r\n000000000000000\r\nX-T: 1\r\n"),
    "a trailer that looks like an end": PLAIN[:-2] + b"0: 0\r\n\r\n",
}


@pytest.mark.parametrize("is_ahead", [True, False], ids=["ahead", "later"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", UNCLEAR)
async def test_behind_anything_but_plain_chunks_no_request_is_read(
    wire: Wire, name: str, path: str, is_ahead: bool
) -> None:
    """Others may take what stands there for a request, or for none."""
    for behind in (AHEAD, CHUNKED % b"/v1/smuggled" + b"0\r\n\r\n"):
        wire.reset()
        async with wire.connecting() as client:
            await client.send(CHUNKED % path.encode() + UNCLEAR[name] + behind * is_ahead)
            got = await asyncio.wait_for(client.receive(), PATIENCE_SECONDS)
            assert (got.status, got.head.values("connection")) == (200, [b"close"])
            # What is sent behind is not read, which may reset the connection.
            with suppress(ConnectionError):
                await client.send(behind * (not is_ahead))
                assert await read_rest(client) == b""
        (seen,) = wire.upstream.received
        assert seen.body == WHOLE and not seen.head.values("x-t")


@pytest.mark.parametrize("size", [b"0" * 16 + b"5", b"0" * 5_000 + b"5", b"5;" + b"x" * 5_000])
async def test_a_line_between_chunks_that_is_too_long_is_refused(wire: Wire, size: bytes) -> None:
    async with wire.connecting() as client:
        await client.send(CHUNKED % b"/v1/other" + size + b"\r\nhello\r\n0\r\n\r\n" + AHEAD)
        got = await asyncio.wait_for(client.receive(), PATIENCE_SECONDS)
        assert (got.status, got.head.values("connection")) == (400, [b"close"])
    assert not any(seen.is_whole for seen in wire.upstream.received)


async def test_chunks_that_have_not_come_when_the_answer_begins_end_the_connection(wire: Wire) -> None:
    async with wire.connecting() as client:
        await client.send(CHUNKED % b"/v1/../x" + b"5\r\nhel")
        got = await asyncio.wait_for(client.receive(), PATIENCE_SECONDS)
        assert (got.status, got.head.values("connection")) == (400, [b"close"])
        await client.send(b"lo\r\n0\r\n\r\n" + AHEAD)
        assert await read_rest(client) == b""
    assert wire.upstream.received == []


# Clients that go


@pytest.mark.parametrize("begun", [b"", b"P", render_chat(WHOLE)[:-5], render_chat(WHOLE), CHUNKED % b"/a"])
async def test_a_client_may_go_at_any_time(
    wire: Wire, begun: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    wire.upstream.script = writing(render_answer(b"x" * 5_000_000))
    for _ in range(5):
        async with wire.connecting() as client:
            await client.send(begun)
            await asyncio.sleep(0.005)
    wire.upstream.script = writing(render_answer())
    assert (await wire.chat(WHOLE)).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_client_beyond_the_bounds_may_go_at_any_time(caplog: pytest.LogCaptureFixture) -> None:
    async with opening_wire(more="bounds: {connections_per_address: 1}\n") as wire, filling(wire, 1):
        for begun in (b"", b"G", AHEAD, AHEAD * 5):
            async with connecting(wire.port) as client:
                await client.send(begun)
            await asyncio.sleep(0.005)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def collecting_nothing() -> Iterator[None]:
    """Nothing looks for objects that only refer to one another."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: 900000"])
@pytest.mark.parametrize("key", [b"sk-a", b"sk-b"], ids=["too large", "a stranger"])
async def test_nothing_of_a_refused_upload_that_breaks_off_stays_in_memory(
    collecting_nothing: None, key: bytes, framing: bytes
) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n%b\r\n\r\n"
    body = (b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000)) * 8
    more = "listen: {max_body_bytes: 500000}\ntenants: [{name: a, keys: [sk-a]}]\n"
    async with opening_wire(more=more) as wire:
        before = count_bodies()
        for _ in range(5):
            async with wire.connecting() as client:
                await client.send(head % (CHAT_PATH.encode(), key, framing) + body)
                await asyncio.sleep(0.05)
        await wait_until(lambda: count_bodies() <= before + 1)


def count_bodies() -> int:
    return sum(isinstance(each, StreamReader) for each in gc.get_objects())


# Web pages

PAGE = "https://chat.example"
SETTINGS = f"tenants: [{{name: a, keys: [sk-a]}}]\nlisten: {{origins: ['{PAGE}']}}\n"


def ask_first(origin: str, *more: tuple[str, str]) -> bytes:
    """A browser asks before it sends a request with a key."""
    headers = [("Origin", origin), ("Access-Control-Request-Method", "POST"), *more]
    return render_request(CHAT_PATH, headers=headers, method="OPTIONS")


async def test_a_page_that_is_allowed_may_ask_with_a_key() -> None:
    async with opening_wire(more=SETTINGS) as wire, wire.connecting() as client:
        wanted = ("Access-Control-Request-Headers", "authorization,content-type")
        permission = await client.ask(ask_first(PAGE, wanted))
        assert permission.status == 204
        assert permission.head.values("access-control-allow-origin") == [PAGE.encode()]
        assert permission.head.values("access-control-allow-methods") == [b"POST"]
        assert permission.head.values("access-control-allow-headers") == [b"authorization,content-type"]
        assert b"Origin" in permission.head.values("vary")
        assert wire.upstream.received == []
        for key, status in (("sk-a", 200), ("sk-b", 401)):
            headers = [("Origin", PAGE), ("Authorization", f"Bearer {key}")]
            got = await client.ask(render_request(CHAT_PATH, WHOLE, headers))
            assert got.status == status
            assert got.head.values("access-control-allow-origin") == [PAGE.encode()]


@pytest.mark.parametrize("origin", ["https://other.example", "null", f"{PAGE}.evil.example", f"{PAGE}:444"])
async def test_other_pages_are_refused(origin: str) -> None:
    async with opening_wire(more=SETTINGS) as wire:
        got = await wire.ask(ask_first(origin))
        assert got.status == 401 and json.loads(got.body)["error"]["code"] == "invalid_api_key"
        assert got.head.values("access-control-allow-origin") == []


async def test_an_upstream_that_names_a_page_is_believed() -> None:
    async with opening_wire(more=SETTINGS) as wire:
        wire.upstream.script = writing(render_answer(headers=[("Access-Control-Allow-Origin", "*")]))
        headers = [("Origin", PAGE), ("Authorization", "Bearer sk-a")]
        got = await wire.ask(render_request("/v1/other", WHOLE, headers))
        assert got.head.values("access-control-allow-origin") == [b"*"]
