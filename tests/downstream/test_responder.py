"""How a client is kept waiting, and how a response that has begun fails."""

import asyncio
import math

import pytest

from gateway.downstream.request import Request
from gateway.downstream.responder import Responder
from gateway.downstream.response import Response
from gateway.headers import make_response_head
from gateway.settings import Keepalive
from gateway.wire.formats.chat import CHAT
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.wire_format import WireFormat
from tests.builders.downstream import open_line, render_get, settle

PAUSE_SECONDS = 0.02
KEEPALIVE = Keepalive(after_seconds=PAUSE_SECONDS, every_seconds=PAUSE_SECONDS)
RARE = Keepalive(after_seconds=3_600, every_seconds=3_600)
OVERLOADED = b'{"error": {"message": "busy", "type": "server_error"}}'


def make_responder(
    request: Request, wire_format: WireFormat, *, is_streaming: bool, keepalive: Keepalive = KEEPALIVE
) -> Responder:
    responder = Responder(request, keepalive)
    responder.set_format(wire_format, is_streaming=is_streaming)
    return responder


async def wait(
    work: "asyncio.Future[None]", max_seconds: float = math.inf, keepalives: int = 0
) -> tuple[bool, bytes, bool]:
    """What `wait_for` returns, what was sent meanwhile, and whether that committed the response.

    The work is done after so many keep-alives; without any, none is due before the test ends.
    """
    found: list[tuple[bool, bool]] = []

    async def respond(request: Request) -> Response | None:
        responder = make_responder(
            request, CHAT, is_streaming=True, keepalive=KEEPALIVE if keepalives else RARE
        )
        found.append((await responder.wait_for(work, {"X-Own": "1"}, max_seconds), responder.is_committed))
        return responder.response

    async with open_line(respond) as line:
        await line.send(render_get())
        while keepalives and line.written.count(CHAT.keepalive) < keepalives:
            await asyncio.sleep(PAUSE_SECONDS / 10)
        if keepalives:
            work.set_result(None)
        while not found:
            await asyncio.sleep(PAUSE_SECONDS / 10)
        (is_done, is_committed), *_ = found
        return is_done, line.written, is_committed


async def test_nothing_is_sent_before_the_first_keep_alive_is_due() -> None:
    work = asyncio.get_running_loop().create_future()
    work.set_result(None)
    assert await wait(work) == (True, b"", False)


async def test_keep_alives_follow_one_another_until_the_work_is_done() -> None:
    work = asyncio.get_running_loop().create_future()
    is_done, written, is_committed = await wait(work, keepalives=2)
    assert is_done and is_committed
    head, _, body = written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/event-stream" in head and b"X-Own: 1" in head
    assert body.count(CHAT.keepalive) >= 2


async def test_the_wait_ends_after_its_most_seconds_and_leaves_the_work_alone() -> None:
    work = asyncio.get_running_loop().create_future()
    is_done, written, is_committed = await wait(work, PAUSE_SECONDS / 2)
    assert (is_done, written, is_committed) == (False, b"", False)
    assert not work.cancelled()


async def test_a_client_that_does_not_stream_is_kept_waiting_with_spaces() -> None:
    work = asyncio.get_running_loop().create_future()

    async def respond(request: Request) -> Response | None:
        responder = make_responder(request, CHAT, is_streaming=False)
        await responder.wait_for(work, {})
        await responder.reply(b"{}", {})
        return responder.response

    async with open_line(respond) as line:
        await line.send(render_get())
        while not line.written.endswith(b"1\r\n \r\n"):
            await asyncio.sleep(PAUSE_SECONDS / 10)
        work.set_result(None)
        await settle()
        head, _, body = line.written.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    assert body.startswith(b"1\r\n \r\n")
    assert body.endswith(b"2\r\n{}\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("is_streaming", "content_type", "framing"),
    [
        (True, b"text/event-stream", b"Transfer-Encoding: chunked"),
        (False, b"application/json", b"Content-Length: 5"),
    ],
)
async def test_a_reply_of_the_gateway_has_the_type_that_the_client_expects(
    is_streaming: bool, content_type: bytes, framing: bytes
) -> None:
    async def respond(request: Request) -> Response | None:
        responder = make_responder(request, CHAT, is_streaming=is_streaming)
        await responder.reply(b"hello", {"X-Own": "1"})
        return responder.response

    async with open_line(respond) as line:
        await line.send(render_get())
        head = line.written.partition(b"\r\n\r\n")[0]
    assert content_type in head and framing in head and b"X-Own: 1" in head


async def test_the_head_of_the_upstream_comes_too_late_after_a_keep_alive() -> None:
    async def respond(request: Request) -> Response | None:
        responder = make_responder(request, CHAT, is_streaming=True)
        # On a busy machine a wait may end before the keep-alive is due.
        while not responder.is_committed:
            never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await responder.wait_for(never, {}, 1.5 * PAUSE_SECONDS)
        responder.begin(make_response_head(201, "Created", []))
        await responder.finish(b"data: {}\n\n")
        is_over.set()
        return responder.response

    is_over = asyncio.Event()
    async with open_line(respond) as line:
        await line.send(render_get())
        await asyncio.wait_for(is_over.wait(), 30)
        assert line.written.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"201" not in line.written
        assert line.written.endswith(b"data: {}\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("wire_format", [CHAT, RESPONSES])
async def test_a_stream_that_fails_ends_with_an_error_event_and_a_broken_connection(
    wire_format: WireFormat,
) -> None:
    async def respond(request: Request) -> Response | None:
        responder = make_responder(request, wire_format, is_streaming=True)
        responder.begin(make_response_head(200, "OK", []))
        await responder.fail(OVERLOADED, 503)
        return responder.response

    async with open_line(respond) as line:
        await line.send(render_get())
        assert line.is_closed and not line.is_aborted
        assert wire_format.render_stream_error(OVERLOADED, 503) in line.written
        assert not line.written.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_response_that_is_no_stream_fails_with_an_aborted_connection(has_begun: bool) -> None:
    async def respond(request: Request) -> Response | None:
        responder = make_responder(request, CHAT, is_streaming=False)
        if has_begun:
            responder.begin(make_response_head(200, "OK", []))
            responder.flush()
        await responder.fail(OVERLOADED, 503)
        return responder.response

    async with open_line(respond) as line:
        await line.send(render_get())
        assert line.is_aborted
        assert not line.written.endswith(b"0\r\n\r\n")
