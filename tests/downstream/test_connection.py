"""Each of head, body, bytes sent ahead and unread response is bounded, in size and in time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory_budget import MemoryBudget
from gateway.core.errors import RequestRefused
from gateway.downstream.connection import ClientConnection
from gateway.downstream.gate import PortBounds
from gateway.downstream.request import Request, read_body, stream_body
from gateway.downstream.response import Response, make_local_head, send_local_response
from gateway.downstream.server import Server
from tests.builders.downstream import Line, render_get, settle

BOUNDS = PortBounds(head_bytes=10_000, head_seconds=30, stall_seconds=60)
# Longer than each of these times.
LATER_SECONDS = 100.0
HEAD = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

Handler = Callable[[Request], Awaitable[Response | None]]


async def echo(request: Request) -> Response:
    """The size of the body, or the refusal of one that does not come."""
    try:
        body = (await read_body(request, 1 << 20, MemoryBudget(1 << 30).open(), Lanes())).raw
    except RequestRefused as error:
        return send_local_response(request, error.status, b"{}")
    return send_local_response(request, 200, b"%d" % len(body))


@asynccontextmanager
async def open_line(handler: Handler = echo, bounds: PortBounds = BOUNDS) -> AsyncIterator[Line]:
    line = Line(Server(handler, bounds).make_connection())
    await settle()
    yield line
    line.close()
    await settle()


def check(line: Line, seconds: float = LATER_SECONDS) -> None:
    """Says that so many seconds have gone by."""
    assert isinstance(line.connection, ClientConnection)
    line.connection.check(time.monotonic() + seconds)


async def check_twice(line: Line) -> None:
    """What a client has not read is compared with what it had not read before."""
    check(line, 0)
    check(line)
    await settle()


def statuses(line: Line) -> list[int]:
    return [int(part[:3]) for part in line.written.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("cut", [1, 9_999, 10_001, 20_000])
async def test_a_head_that_is_too_large_is_refused(cut: int) -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\n" + (b"X-Some: %b\r\n" % (b"1" * 100)) * 200 + b"\r\n"
    async with open_line() as line:
        await line.send(head[:cut])
        await line.send(head[cut:])
        assert statuses(line) == [431]
        assert line.is_closed
    error = json.loads(line.written.partition(b"\r\n\r\n")[2])["error"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("beginning", [b"G", render_get()[:-1], b"\r\n\r\nGET / HT"])
async def test_a_head_that_does_not_end_in_time_is_refused(beginning: bytes) -> None:
    async with open_line() as line:
        await line.send(beginning)
        check(line, 29)
        assert not line.is_closed
        check(line, 31)
        assert statuses(line) == [408] and line.is_closed


async def test_the_time_of_a_head_counts_from_its_first_byte_also_behind_other_requests() -> None:
    async with open_line() as line:
        await line.send(render_get() + b"\r\n")
        check(line)
        assert not line.is_closed, "an unused connection may stay"
        await line.send(render_get()[:5])
        check(line)
        assert statuses(line) == [200, 408]


async def test_a_head_that_was_begun_behind_a_request_in_one_piece_has_to_end_too() -> None:
    for first in (HEAD + b"x" * 10, CHUNKED + b"1\r\nx\r\n0\r\n\r\n", render_get()):
        async with open_line() as line:
            await line.send(first + b"GET / HT")
            assert statuses(line) == [200]
            check(line)
            assert statuses(line) == [200, 408]


@pytest.mark.parametrize("cut", range(1, 5))
async def test_the_end_of_a_head_may_come_in_two_pieces(cut: int) -> None:
    async with open_line() as line:
        await line.send(HEAD[:-cut])
        await line.send(HEAD[-cut:] + b"0123456789")
        assert statuses(line) == [200] and line.written.endswith(b"10")


async def test_an_http2_client_is_refused_at_once() -> None:
    async with open_line() as line:
        await line.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        assert statuses(line) == [400] and line.is_closed


async def test_unfinished_heads_on_many_connections_share_one_bound() -> None:
    server = Server(echo, BOUNDS)
    lines = [Line(server.make_connection()) for _ in range(80)]
    await settle()
    for piece in (b"GET / HTTP/1.1\r\nX: ", b"x" * 9_000, b"x" * 100):
        for line in lines:
            if not line.is_closed:
                await line.send(piece)
    refused = [line for line in lines if line.is_closed]
    assert len(refused) > 5 and all(statuses(line) == [503] for line in refused)
    # A head that comes in one piece is served all the same.
    other = Line(server.make_connection())
    await settle()
    await other.send(render_get())
    assert statuses(other) == [200]
    for line in [*lines, other]:
        line.close()
    await settle()
    late = Line(server.make_connection())
    await settle()
    await late.send(b"GET / HTTP/1.1\r\n")
    await late.send(b"Host: a\r\n\r\n")
    assert statuses(late) == [200]
    late.close()
    await settle()


async def test_what_is_sent_ahead_of_a_response_is_bounded_and_served_later() -> None:
    is_over = asyncio.Event()

    async def wait(request: Request) -> Response:
        await is_over.wait()
        return await echo(request)

    async with open_line(wait) as line:
        await line.send(render_get())
        fed = 0
        while not line.is_paused:
            await line.send(render_get())
            fed += 1
            assert fed * len(render_get()) < 2 * BOUNDS.head_bytes
        is_over.set()
        while line.responses <= fed:
            await settle()
        assert statuses(line) == [200] * (fed + 1)
        await line.send(render_get())
        assert statuses(line) == [200] * (fed + 2)


@pytest.mark.parametrize("begun", [HEAD + b"12345", HEAD, CHUNKED, CHUNKED + b"5\r\nhel"])
async def test_a_body_that_stops_coming_is_refused(begun: bytes) -> None:
    async with open_line() as line:
        await line.send(begun)
        check(line, 59)
        await settle()
        assert statuses(line) == []
        check(line, 61)
        await settle()
        assert statuses(line) == [408] and line.is_closed
        assert b"Connection: close" in line.written


async def test_a_client_that_has_sent_everything_may_wait_for_long() -> None:
    async def never(request: Request) -> Response | None:
        await asyncio.Event().wait()
        return None

    for sent in (render_get(), HEAD + b"0123456789", CHUNKED + b"1\r\nx\r\n0\r\n\r\n"):
        async with open_line(never) as line:
            await line.send(sent)
            check(line)
            await settle()
            assert line.written == b"" and not line.is_closed


async def test_an_upload_that_the_gateway_does_not_read_has_not_stopped() -> None:
    async def read_nothing(request: Request) -> Response | None:
        stream_body(request)
        await asyncio.Event().wait()
        return None

    async with open_line(read_nothing) as line:
        await line.send(HEAD.replace(b"10", b"9999999") + b"x" * 2_000_000)
        assert line.is_paused
        check(line)
        await settle()
        assert line.written == b"" and not line.is_closed


async def test_a_body_may_stop_while_its_response_is_on_the_way() -> None:
    is_over = asyncio.Event()

    async def respond_early(request: Request) -> Response:
        response = Response(make_local_head(200, 2, {}), request)
        response.send(b"{")
        await is_over.wait()
        response.finish(b"}")
        return response

    async with open_line(respond_early) as line:
        await line.send(HEAD)
        check(line)
        await settle()
        assert not line.is_closed
        is_over.set()
        await settle()
        assert line.written.endswith(b"{}")


@pytest.mark.parametrize("body", [b"x", b"x\r\n", b"5\r\nhelloo", b"5\r\nhello\n", b"0 \r\n\r\n"])
@pytest.mark.parametrize("is_together", [True, False])
async def test_a_malformed_chunk_is_refused_at_once(body: bytes, is_together: bool) -> None:
    async with open_line() as line:
        for piece in (CHUNKED + body,) if is_together else (CHUNKED, body):
            await line.send(piece)
        assert statuses(line) == [400] and line.is_closed


async def test_trailers_are_dropped() -> None:
    body = b"1\r\nx\r\n0\r\nContent-Length: 3\r\nX-T: 1\r\n\r\n"
    for cut in range(1, len(body)):
        async with open_line() as line:
            await line.send(CHUNKED + body[:cut])
            await line.send(body[cut:] + render_get())
            assert statuses(line) == [200, 200]


class Unread:
    """Responds, and says that the client has read nothing of it."""

    line: Line

    def __init__(self, *, goes_on: bool) -> None:
        self._goes_on = goes_on

    async def respond(self, request: Request) -> Response:
        response = Response(make_local_head(200, 2, {}), request)
        response.send(b"{")
        self.line.unsent_bytes = 1_000
        if self._goes_on:
            await asyncio.Event().wait()
        response.finish(b"}")
        return response


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    unread = Unread(goes_on=False)
    async with open_line(unread.respond) as line:
        unread.line = line
        await line.send(render_get())
        await check_twice(line)
        assert line.is_aborted


async def test_a_client_that_does_not_read_is_cut_off_while_its_response_waits_for_it() -> None:
    unread = Unread(goes_on=True)
    async with open_line(unread.respond) as line:
        unread.line = line
        await line.send(render_get())
        line.connection.pause_writing()
        await check_twice(line)
        assert line.is_aborted
        line.connection.resume_writing()


async def test_a_client_is_not_cut_off_while_its_response_is_still_made() -> None:
    unread = Unread(goes_on=True)
    async with open_line(unread.respond) as line:
        unread.line = line
        await line.send(render_get())
        await check_twice(line)
        assert not line.is_closed


async def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    unread = Unread(goes_on=False)
    async with open_line(unread.respond) as line:
        unread.line = line
        await line.send(render_get())
        for seconds in range(0, 500, 50):
            line.unsent_bytes -= 1
            check(line, seconds)
        assert not line.is_aborted


async def test_a_refused_connection_is_told_so_without_being_read() -> None:
    server = Server(echo, PortBounds(connections_per_address=1))
    first, second = Line(server.make_connection()), Line(server.make_connection())
    await settle()
    await second.send(render_get())
    assert statuses(second) == [503] and b"Retry-After: 1\r\n" in second.written
    assert b"Connection: close" in second.written
    await first.send(render_get())
    assert statuses(first) == [200]
    for line in (first, second):
        line.close()
    await settle()


async def test_the_rest_of_a_body_behind_an_early_response_is_not_awaited_for_longer_than_a_pause() -> None:
    async def refuse(request: Request) -> Response:
        return send_local_response(request, 400, b"{}")

    bounds = PortBounds(head_bytes=10_000, head_seconds=30, stall_seconds=0.05)
    async with open_line(refuse, bounds) as line:
        await line.send(HEAD + b"half")
        while not line.is_closed:
            await asyncio.sleep(0.01)
    assert statuses(line) == [400]
