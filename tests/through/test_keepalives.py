"""A client that waits for a summary gets keep-alives of its format, then the right response.

Once one was sent, the status is 200, and a failure can only be an event of the stream or a broken connection.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.toy.agent import Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.house import House
from tests.toy.messages import MESSAGES
from tests.toy.product import serve
from tests.toy.raw import Connection, Got, ask, connecting, render_request
from tests.toy.reply import Reply
from tests.toy.responses import RESPONSES
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

# About 10,000 tokens, of which 8,000 fit: the first request of a conversation needs a summary.
WINDOW, BIAS = 8_000, 1.0
TURN = 10
SESSION = make_session(TURN + 1, 7)
MORE = "keepalive: {after_seconds: 0.05}\n"
# So much longer than the keep-alives are apart that a busy machine sends several, too.
SLOW = Delivery(before_headers_seconds=0.6)
NOTE = "This is the answer. "
ERROR = {"message": "Overloaded", "type": "overloaded", "code": "server_error", "param": None}


@dataclass(frozen=True)
class Format:
    """sign: a keep-alive of a stream. begins: how its answer begins."""

    dialect: Dialect
    sign: bytes
    begins: bytes

    def request(self, key: str, *, stream: bool, more: Mapping[str, str] | None = None) -> bytes:
        shape = Shape(
            dialect=self.dialect, stream=stream, include_usage=self.dialect is CHAT, max_tokens=1_000
        )
        headers = {"Content-Type": "application/json"} | self.dialect.headers(key) | dict(more or {})
        return render_request(f"/v1{self.dialect.path}", SESSION.request(TURN, shape), headers.items())

    async def ask(self, house: House, *, stream: bool, more: Mapping[str, str] | None = None) -> Got:
        return await ask(house.product.port, self.request(house.key, stream=stream, more=more))

    def find_error(self, event: bytes) -> object:
        """Of an event that says that the stream has failed."""
        told: Any = json.loads(event.rpartition(b"data: ")[2])
        if self.dialect is RESPONSES:
            assert told["type"] == "response.failed" and told["response"]["error"]["message"]
            return told["error"]
        if self.dialect is MESSAGES:
            assert event.startswith(b"event: error\n") and told["type"] == "error"
        return told["error"]


FORMATS = {
    "chat": Format(CHAT, b": keep-alive\n\n", b"data: "),
    "responses": Format(
        RESPONSES, b'event: keepalive\ndata: {"type":"keepalive"}\n\n', b"event: response.created\n"
    ),
    "messages": Format(MESSAGES, b'event: ping\ndata: {"type": "ping"}\n\n', b"event: message_start\n"),
}
each_format = pytest.mark.parametrize("name", FORMATS)
each_kind = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@pytest.fixture
def slow(house: House) -> House:
    """A summary takes long."""
    house.toy.summary_delivery = SLOW
    house.toy.reply = lambda _: Reply(text=NOTE * 20)
    return house


async def directly(house: House, wire_format: Format) -> bytes:
    """The toy's response to the body that the gateway sent, apart from the numbers in it."""
    sent = house.toy.chats[0]
    headers = [pair for pair in sent.headers if pair[0].lower() not in ("host", "content-length")]
    got = await ask(house.toy.port, render_request(f"/v1{wire_format.dialect.path}", sent.body, headers))
    return without_numbers(got.body)


def without_numbers(body: bytes) -> bytes:
    for start in (b"chatcmpl-", b"resp_", b"msg_", b"created_at"):
        pieces = body.split(start)
        body = start.join([pieces[0], *(piece.lstrip(b'0123456789": ') for piece in pieces[1:])])
    return body


@each_format
async def test_a_stream_waits_with_signs_and_then_has_its_answer(slow: House, name: str) -> None:
    wire_format = FORMATS[name]
    got = await wire_format.ask(slow, stream=True)
    count = got.body.count(wire_format.sign)
    assert count >= 2
    assert got.body.startswith(wire_format.sign * count + wire_format.begins)
    assert without_numbers(got.body[len(wire_format.sign) * count :]) == await directly(slow, wire_format)
    assert (got.head.line, got.is_whole) == (b"HTTP/1.1 200 OK", True)
    assert got.head.values("content-type")[0].startswith(b"text/event-stream")
    assert len(got.own("conversation") or "") == 16
    assert [seen.refusal for seen in slow.toy.requests] == [None] * len(slow.toy.requests)


@each_format
async def test_a_whole_answer_waits_with_spaces(slow: House, name: str) -> None:
    got = await FORMATS[name].ask(slow, stream=False)
    assert got.body.startswith(b"  ")
    assert NOTE * 20 in got.body.decode() and json.loads(got.body)
    assert without_numbers(got.body.lstrip(b" ")) == await directly(slow, FORMATS[name])
    assert (got.head.line, got.is_whole) == (b"HTTP/1.1 200 OK", True)
    assert got.head.values("content-type") == [b"application/json"]


@each_kind
async def test_after_a_keep_alive_the_response_is_not_compressed(slow: House, stream: bool) -> None:
    """The head was sent before and names no encoding."""
    chat = FORMATS["chat"]
    slow.toy.delivery = Delivery(gzip=True, write_bytes=50)
    got = await chat.ask(slow, stream=stream, more={"Accept-Encoding": "gzip"})
    assert got.head.values("content-encoding") == got.head.values("content-length") == []
    assert got.is_whole
    slow.toy.delivery = Delivery()
    plain = without_numbers(got.body.replace(chat.sign, b"").lstrip())
    assert NOTE.encode() in plain or b'"content":"This is' in plain


@pytest.mark.parametrize("coding", ["gzip", "odd"])
async def test_after_a_keep_alive_a_body_that_cannot_be_decoded_breaks_off(slow: House, coding: str) -> None:
    body = gzip.compress(b'data: {"choices":[]}\n\n' * 50)[:-9]
    headers = (("Content-Type", "text/event-stream"), ("Content-Encoding", coding))
    slow.toy.failures.append(RawAnswer(headers=headers, pieces=(body,)))
    got = await FORMATS["chat"].ask(slow, stream=True)
    assert got.status == 200 and not got.is_whole
    assert b"\x1f\x8b" not in got.body


@each_format
async def test_a_refusal_behind_a_sign_is_an_event_of_the_stream(slow: House, name: str) -> None:
    wire_format = FORMATS[name]
    error = {"type": "error", "error": ERROR} if name == "messages" else {"error": ERROR}
    slow.toy.failures.append(RawAnswer(status=503, pieces=(json.dumps(error).encode(),)))
    got = await wire_format.ask(slow, stream=True)
    assert got.body.startswith(wire_format.sign)
    assert wire_format.find_error(got.body.rpartition(wire_format.sign)[2]) == ERROR
    assert not got.is_whole


async def test_a_refusal_behind_a_space_is_a_broken_connection(slow: House) -> None:
    slow.toy.failures.append(RawAnswer(status=503, pieces=(b'{"error":{"message":"Overloaded"}}',)))
    got = await FORMATS["chat"].ask(slow, stream=False)
    assert (got.status, got.is_whole, got.body.strip(b" ")) == (200, False, b"")


@each_kind
async def test_an_answer_that_breaks_off_behind_a_keep_alive_breaks_off(slow: House, stream: bool) -> None:
    slow.toy.delivery = Delivery(stop_after_bytes=150, ending="close")
    got = await FORMATS["chat"].ask(slow, stream=stream)
    assert (got.status, got.is_whole) == (200, False)


async def test_the_keep_alive_stops_with_the_wait(slow: House) -> None:
    slow.toy.delivery = Delivery(between_writes_seconds=0.01)
    got = await FORMATS["chat"].ask(slow, stream=True)
    assert got.is_whole
    assert FORMATS["chat"].sign not in got.body[got.body.index(b"data: ") :]


@pytest.mark.parametrize("fits", [True, False])
async def test_a_failed_summary_costs_the_wait_only(slow: House, fits: bool) -> None:
    """What the window does not hold has a digest then."""
    error = RawAnswer(status=500, pieces=(b"{}",), delivery=Delivery(before_headers_seconds=0.1))
    slow.toy.summary_failures.extend([error] * 2)
    slow.toy.window = 4 * WINDOW if fits else WINDOW
    got = await FORMATS["chat"].ask(slow, stream=True)
    assert (got.status, got.is_whole) == (200, True)
    assert got.body.endswith(b"data: [DONE]\n\n")
    assert b"made without a model" in slow.toy.chats[0].body


@each_format
@each_kind
async def test_a_client_that_hangs_up_still_gets_its_summary_next_time(
    house: House, name: str, stream: bool
) -> None:
    may_answer = asyncio.Event()
    house.toy.summary_delivery = Delivery(after=may_answer)
    house.toy.reply = lambda _: Reply(text=NOTE)
    async with connecting(house.product.port) as connection:
        await connection.send(FORMATS[name].request(house.key, stream=stream))
        await wait_until(lambda: len(house.toy.summaries) == 1)
    may_answer.set()
    await house.at_rest()
    assert house.toy.summaries[0].finished and house.toy.chats == []
    got = await FORMATS[name].ask(house, stream=stream)
    assert (got.status, got.own("plan"), len(house.toy.summaries)) == (200, "pivot", 1)


async def test_a_client_that_hangs_up_behind_a_keep_alive_cancels_only_its_own_request(house: House) -> None:
    may_answer = asyncio.Event()
    house.toy.summary_delivery = Delivery(after=may_answer)
    async with connecting(house.product.port) as gone, connecting(house.product.port) as patient:
        for client in (gone, patient):
            await client.send(FORMATS["chat"].request(house.key, stream=True))
            await client.reader.readuntil(FORMATS["chat"].sign)
        gone.writer.transport.abort()
        may_answer.set()
        rest = await asyncio.wait_for(read_to_end(patient), 30)
    assert b"data: [DONE]" in rest
    assert (len(house.toy.summaries), len(house.toy.chats)) == (1, 1)


async def read_to_end(client: Connection) -> bytes:
    return await client.reader.readuntil(b"0\r\n\r\n")


@dataclass(frozen=True)
class Houses:
    """One whose upstream may be silent for a moment only, and one that sends its first sign late."""

    impatient: House
    quiet: House


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def houses() -> AsyncIterator[Houses]:
    async with ToyUpstream(window=WINDOW) as toy:
        yaml = (
            'store: "memory:"\nupstreams:\n'
            f'  default: {{base_url: "{toy.base_url}", discover: false, idle_seconds: %s}}\n'
            f'models:\n  - {{match: "*", context: {WINDOW}}}\n'
            "keepalive: {after_seconds: %s}\n"
        )
        async with serve(yaml % (0.5, 0.05)) as first, serve(yaml % (60, 30)) as second:
            yield Houses(House(toy, first, "sk-first"), House(toy, second, "sk-second"))


@each_format
async def test_a_silent_upstream_behind_a_sign_is_an_event_of_the_stream(houses: Houses, name: str) -> None:
    house, wire_format = houses.impatient, FORMATS[name]
    house.toy.reset()
    house.toy.summary_delivery, house.toy.delivery = SLOW, Delivery(never=True)
    got = await wire_format.ask(House(house.toy, house.product, f"sk-{name}"), stream=True)
    assert (got.status, got.is_whole) == (200, False)
    error: Any = wire_format.find_error(got.body.rpartition(wire_format.sign)[2])
    assert "silent" in error["message"]


async def test_a_silent_upstream_behind_a_space_is_a_broken_connection(houses: Houses) -> None:
    house = houses.impatient
    house.toy.reset()
    house.toy.summary_delivery, house.toy.delivery = SLOW, Delivery(never=True)
    got = await FORMATS["chat"].ask(house, stream=False)
    assert (got.status, got.is_whole, got.body.strip(b" ")) == (200, False, b"")


@each_kind
async def test_a_short_wait_has_no_keep_alive_and_the_status_is_the_upstreams(
    houses: Houses, stream: bool
) -> None:
    house = houses.quiet
    house.toy.reset()
    house.toy.reply = lambda _: Reply(text=NOTE)
    for key, failures in ((f"sk-{stream}-1", []), (f"sk-{stream}-2", [429])):
        house.toy.failures.extend(RawAnswer(status=each, pieces=(b'{"error":"slow"}',)) for each in failures)
        got = await FORMATS["chat"].ask(House(house.toy, house.product, key), stream=stream)
        assert got.is_whole and got.own("plan") == "pivot"
        assert got.body[:1] not in (b":", b" ")
        assert (got.status, got.body == b'{"error":"slow"}') == ((429, True) if failures else (200, False))
    assert len(house.toy.summaries) == 2
