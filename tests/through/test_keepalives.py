"""A client that waits for a summary gets keep-alives of its format, then the right response."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.product import serve
from tests.toy.raw import Got, ask, connecting, render_request
from tests.toy.reply import Reply, render_error
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream
from tests.toy.wire import JSON_HEADERS

# About 10,000 tokens, of which 8,000 fit: its first request needs a summary.
WINDOW = 8_000
TURN = 10
COMMENT = b": keep-alive\n\n"
# So much longer than the keep-alives are apart that a busy machine sends several, too.
SLOW = Delivery(before_headers_seconds=1.0)


@dataclass(frozen=True)
class Room:
    toy: ToyUpstream
    port: int
    session: Session

    def request(self, *, stream: bool, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
        shape = Shape(stream=stream, include_usage=True, max_tokens=1_000)
        return render_request(body=self.session.request(TURN, shape), headers=[*JSON_HEADERS, *headers])

    async def ask(self, *, stream: bool, headers: tuple[tuple[str, str], ...] = ()) -> Got:
        return await ask(self.port, self.request(stream=stream, headers=headers))


@asynccontextmanager
async def opening_room(idle_seconds: float = 60, after_seconds: float = 0.15) -> AsyncIterator[Room]:
    session = make_session(TURN + 1, 7)
    async with ToyUpstream(window=WINDOW) as toy:
        toy.summary_delivery = SLOW
        toy.reply = lambda _: Reply(text="This is the answer. " * 20)
        yaml = (
            f'store: "memory:"\nupstreams:\n'
            f'  default: {{base_url: "{toy.base_url}", idle_seconds: {idle_seconds}}}\n'
            f'models:\n  - {{match: "toy-*", context: {WINDOW}}}\n'
            f"keepalive: {{after_seconds: {after_seconds}, every_seconds: 0.15}}\n"
        )
        async with serve(yaml) as gateway:
            yield Room(toy, gateway.port, session)


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with opening_room() as opened:
        yield opened


async def directly(room: Room, *, stream: bool) -> bytes:
    """The toy's response to the body that the gateway sent, apart from its number."""
    got = await ask(room.toy.port, render_request(body=room.toy.chats[0].body, headers=JSON_HEADERS))
    return without_number(got.body)


def without_number(body: bytes) -> bytes:
    for number in range(9):
        body = body.replace(b"chatcmpl-%d" % number, b"chatcmpl")
    return body


async def test_a_stream_waits_with_comments(room: Room) -> None:
    got = await room.ask(stream=True)
    comments = got.body.count(COMMENT)
    assert comments >= 2
    assert got.body.startswith(COMMENT * comments + b"data: ")
    assert without_number(got.body[len(COMMENT) * comments :]) == await directly(room, stream=True)
    assert (got.head.line, got.is_whole) == (b"HTTP/1.1 200 OK", True)
    assert got.head.values("content-type")[0].startswith(b"text/event-stream")
    assert len(got.own("conversation") or "") == 16
    assert [seen.refusal for seen in room.toy.requests] == [None] * len(room.toy.requests)


async def test_a_whole_answer_waits_with_spaces(room: Room) -> None:
    got = await room.ask(stream=False)
    assert got.body.startswith(b"  ")
    assert json.loads(got.body)["choices"][0]["message"]["content"] == "This is the answer. " * 20
    assert without_number(got.body.lstrip(b" ")) == await directly(room, stream=False)
    assert (got.head.line, got.is_whole) == (b"HTTP/1.1 200 OK", True)
    assert got.head.values("content-type") == [b"application/json"]


@pytest.mark.parametrize("stream", [True, False])
async def test_after_a_keep_alive_the_response_is_not_compressed(room: Room, stream: bool) -> None:
    """The head was sent before and names no encoding."""
    room.toy.delivery = Delivery(gzip=True, write_bytes=50)
    got = await room.ask(stream=stream, headers=(("Accept-Encoding", "gzip"),))
    assert got.head.values("content-encoding") == got.head.values("content-length") == []
    assert got.is_whole
    room.toy.delivery = Delivery()
    assert without_number(got.body.replace(COMMENT, b"").lstrip()) == await directly(room, stream=stream)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_short_wait_has_no_keep_alive(stream: bool) -> None:
    async with opening_room(after_seconds=30) as room:
        got = await room.ask(stream=stream)
        assert (got.status, got.is_whole) == (200, True)
        assert got.body[:1] not in (b":", b" ")
        assert got.own("plan") == "pivot"
        assert len(room.toy.summaries) == 1


async def test_the_status_is_the_upstreams_if_no_keep_alive_was_sent() -> None:
    async with opening_room(after_seconds=30) as room:
        room.toy.failures.append(RawAnswer(status=429, pieces=(b'{"error":"slow down"}',)))
        got = await room.ask(stream=True)
        assert (got.status, got.body) == (429, b'{"error":"slow down"}')


ERROR = render_error("Overloaded", "overloaded", "server_error")


def read_events(body: bytes) -> Iterator[object]:
    for event in body.split(b"\n\n"):
        if event.startswith(b"data: "):
            yield json.loads(event[6:])


async def test_a_refusal_behind_a_keep_alive_is_an_event_of_the_stream(room: Room) -> None:
    room.toy.failures.append(RawAnswer(status=503, pieces=(ERROR,)))
    got = await room.ask(stream=True)
    assert got.body.startswith(COMMENT)
    assert list(read_events(got.body)) == [json.loads(ERROR)]
    assert not got.is_whole


async def test_a_refusal_behind_a_space_is_a_broken_connection(room: Room) -> None:
    room.toy.failures.append(RawAnswer(status=503, pieces=(ERROR,)))
    got = await room.ask(stream=False)
    assert got.status == 200
    assert got.body.strip(b" ") == b""
    assert not got.is_whole


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_breaks_off_behind_a_keep_alive_breaks_off(room: Room, stream: bool) -> None:
    room.toy.delivery = Delivery(stop_after_bytes=150, ending="close")
    got = await room.ask(stream=stream)
    assert got.status == 200
    assert not got.is_whole


async def test_a_silent_upstream_behind_a_keep_alive_is_an_event_of_the_stream() -> None:
    """Once a status was sent, a failure can only be an error event in the client's format."""
    async with opening_room(idle_seconds=0.4) as room:
        room.toy.delivery = Delivery(never=True)
        got = await room.ask(stream=True)
        assert not got.is_whole
        [event] = read_events(got.body)
        assert isinstance(event, dict)
        assert event["error"]["type"] == "upstream_error"


async def test_a_silent_upstream_behind_a_space_is_a_broken_connection() -> None:
    async with opening_room(idle_seconds=0.4) as room:
        room.toy.delivery = Delivery(never=True)
        got = await room.ask(stream=False)
        assert (got.status, got.is_whole, got.body.strip(b" ")) == (200, False, b"")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_still_gets_its_summary_next_time(room: Room, stream: bool) -> None:
    async with connecting(room.port) as connection:
        await connection.send(room.request(stream=stream))
        await wait_until(lambda: len(room.toy.summaries) == 1)
    await wait_until(lambda: room.toy.summaries[0].finished)
    assert room.toy.chats == []
    await asyncio.sleep(0.05)
    got = await room.ask(stream=stream)
    assert (got.status, got.own("plan"), len(room.toy.summaries)) == (200, "pivot", 1)


async def test_a_failed_summary_costs_the_wait_only(room: Room) -> None:
    """The session fits twice the window, and everything else is valid."""
    room.toy.summary_failures.extend([RawAnswer(status=500, pieces=(ERROR,), delivery=SLOW)] * 2)
    room.toy.window = 2 * WINDOW
    got = await room.ask(stream=True)
    assert (got.status, got.is_whole) == (200, True)
    assert got.body.endswith(b"data: [DONE]\n\n")


async def test_the_keep_alive_stops_with_the_wait(room: Room) -> None:
    room.toy.delivery = Delivery(between_writes_seconds=0.05)
    got = await room.ask(stream=True)
    assert got.is_whole
    assert COMMENT not in got.body[got.body.index(b"data: ") :]
