"""Whatever an upstream sends, a client sees it whole, sees a clear error, or sees that it is broken; and the
next requests get their own responses.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count, product
from typing import Any, Final, Literal

import pytest
import pytest_asyncio
from _pytest.mark.structures import ParameterSet

from tests.covering import choose_cover, choose_rows
from tests.toy.product import serve
from tests.toy.raw import (
    Connection,
    Ending,
    Got,
    RawUpstream,
    Received,
    connecting,
    end,
    render_answer,
    render_request,
    writing,
)
from tests.toy.running import wait_until
from tests.toy.wire import make_chat

# What no log may show, and no other request may get.
SECRET: Final = b"s3cret"
BODY: Final = b'data: {"text":"' + SECRET + b'"}\n\n'
# whole: as it came · error: a 502 or 504 of the gateway · broken: begun, and visibly not ended
Sight = Literal["whole", "error", "broken"]
_LINE: Final = b"HTTP/1.1 200 OK"
_TYPE: Final = b"Content-Type: text/event-stream\r\n"
_CHUNK: Final = b"%x\r\n%b\r\n" % (len(BODY), BODY)
_LAST: Final = b"0\r\n\r\n"


@dataclass(frozen=True)
class Fault:
    """sights: what a client may see. status: of the response, if a client may see it whole."""

    name: str
    kind: str
    data: bytes
    ending: Ending
    sights: tuple[Sight, ...]
    body: bytes = BODY
    status: int = 200


def _head(*lines: bytes, line: bytes = _LINE) -> bytes:
    return b"\r\n".join([line, *lines]) + b"\r\n" + _TYPE + b"\r\n"


def _length(*lines: bytes, line: bytes = _LINE, body: bytes = BODY) -> bytes:
    return _head(b"Content-Length: %d" % len(BODY), *lines, line=line) + body


def _chunked(body: bytes, *lines: bytes) -> bytes:
    return _head(b"Transfer-Encoding: chunked", *lines) + body


# No response at all, or something that is none.
_NOTHING: Final[dict[str, bytes]] = {
    "nothing": b"",
    "half a status line": b"HTTP/1.1 2",
    "half a head": b"HTTP/1.1 200 OK\r\nX-A: " + SECRET,
    "a text": b"the model says " + SECRET + b"\r\n\r\n",
    "json": b'{"a":"' + SECRET + b'"}',
    "http/0.9": b"HTTP/0.9 200 OK\r\n\r\n" + BODY,
    "http/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/2 settings": b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "a tls alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "interim responses only": b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
}
# Heads that must not be passed on. The connection stays open, so nothing but the head can tell.
_HEADS: Final[dict[str, bytes]] = {
    "an unasked 101": b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + BODY,
    "a 101 with upgrade": _head(b"Connection: upgrade\r\nUpgrade: x", line=b"HTTP/1.1 101 X") + BODY,
    "status 000": _length(line=b"HTTP/1.1 000 Odd"),
    "status 099": _length(line=b"HTTP/1.1 099 Odd"),
    "status 99": _length(line=b"HTTP/1.1 99 Odd"),
    "status 2000": _length(line=b"HTTP/1.1 2000 Odd"),
    "status 2x0": _length(line=b"HTTP/1.1 2x0 Odd"),
    "version 2.0": _length(line=b"HTTP/2.0 200 OK"),
    "version 1.2": _length(line=b"HTTP/1.2 200 OK"),
    "another protocol": _length(line=b"ICY 200 OK"),
    "a space before a colon": _length(b"X-A : b"),
    "a length with a space": _head(b"Content-Length : %d" % len(BODY)) + BODY,
    "chunked with a space": _head(b"Transfer-Encoding : chunked") + _CHUNK + _LAST,
    "a line without colon": _length(b"X-A"),
    "a name with a control": _length(b"X\x01: b"),
    "a nul in a value": _length(b"X-A: b\x00c"),
    "a return in a value": _length(b"X-A: b\rX-B: c"),
    "two lengths": _length(b"Content-Length: 1"),
    "a list of lengths": _head(b"Content-Length: 2, 2") + BODY,
    "a negative length": _head(b"Content-Length: -2") + BODY,
    "a signed length": _head(b"Content-Length: +2") + BODY,
    "an empty length": _head(b"Content-Length:") + BODY,
    "a length beyond 64 bits": _head(b"Content-Length: " + b"9" * 30) + BODY,
    "a length of 64 ones": _head(b"Content-Length: 18446744073709551615") + BODY,
    "length and chunks": _length(b"Transfer-Encoding: chunked"),
    "chunks and length": _chunked(_CHUNK + _LAST, b"Content-Length: %d" % len(BODY)),
    "gzip, chunked": _head(b"Transfer-Encoding: gzip, chunked") + _CHUNK + _LAST,
    "chunked, gzip": _head(b"Transfer-Encoding: chunked, gzip") + _CHUNK + _LAST,
    "chunked twice": _chunked(_CHUNK + _LAST, b"Transfer-Encoding: chunked"),
    "an unknown coding": _head(b"Transfer-Encoding: xchunked") + _CHUNK + _LAST,
    "a huge head": _length(*[b"X-%d: %b" % (n, b"y" * 60_000) for n in range(6)]),
    "a huge header": _length(b"X-A: " + b"y" * 70_000),
    "too many headers": _length(*[b"X-%d: y" % n for n in range(300)]),
    "a huge reason": _length(line=_LINE + b"y" * 70_000),
}
# Bodies that do not end as their heads say.
_CUTS: Final[dict[str, bytes]] = {
    "less than its length": _head(b"Content-Length: 999") + BODY,
    "no last chunk": _chunked(_CHUNK),
    "half a chunk": _chunked(_CHUNK[:-9]),
    "half a last chunk": _chunked(_CHUNK + b"0\r\n"),
    "a broken gzip": _head(b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip") + _CHUNK[:-9],
}
_CHUNKS: Final[dict[str, bytes]] = {
    "a chunk of no size": _chunked(_CHUNK + b"size\r\n"),
    "a negative chunk": _chunked(_CHUNK + b"-2\r\n"),
    "a chunk beyond 64 bits": _chunked(_CHUNK + b"f" * 17 + b"\r\n"),
    "a chunk of 64 ones": _chunked(_CHUNK + b"f" * 16 + b"\r\n"),
    "a chunk longer than its size": _chunked(b"2\r\n" + BODY + b"\r\n" + _LAST),
    "a huge trailer": _chunked(_CHUNK + b"0\r\nX-T: " + b"y" * 70_000),
    "many trailers": _chunked(_CHUNK + b"0\r\n" + b"X-T: y\r\n" * 3_000),
}
# More than a response. What follows belongs to no one.
_MORE: Final[dict[str, bytes]] = {
    "bytes behind a length": _length() + b"late " + SECRET,
    "bytes behind chunks": _chunked(_CHUNK + _LAST) + b"late " + SECRET,
    "a second response": _length() + render_answer(SECRET),
    "half a second response": _length() + b"HTTP/1.1 2",
    "a second one behind chunks": _chunked(_CHUNK + _LAST) + render_answer(SECRET),
}
# Odd, and clear.
_CLEAR: Final[dict[str, bytes]] = {
    "a thousand interim responses": b"HTTP/1.1 103 Early\r\n\r\n" * 1_000 + _length(),
    "an empty line first": b"\r\n" + _length(),
    "no reason": _length(line=b"HTTP/1.1 200"),
    "version 1.0": _length(line=b"HTTP/1.0 200 OK"),
    "two interim responses": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\n\r\n" + _length(),
    "a folded header": _length(b"X-A: b\r\n c"),
    "bare line feeds": _length().replace(b"\r\n", b"\n"),
    "an upgrade offer": _length(b"Connection: upgrade\r\nUpgrade: h2c"),
    "a chunk extension": _chunked(_CHUNK.replace(b"\r\n", b";a=b\r\n", 1) + _LAST),
    "a trailer": _chunked(_CHUNK + b"0\r\nX-T: 1\r\n\r\n"),
    "a line feed behind it": _length() + b"\r\n",
}


def list_faults() -> list[Fault]:
    faults = []
    endings: tuple[Ending, ...] = ("close", "reset", "hang")
    for ending in endings:
        faults += [Fault(name, "nothing", data, ending, ("error",)) for name, data in _NOTHING.items()]
        # What came in one piece with the head fails before the head is passed on.
        cut: tuple[Sight, ...] = ("broken", "error")
        faults += [Fault(name, "cut", data, ending, cut) for name, data in _CUTS.items()]
    faults += [Fault(name, "head", data, "stay", ("error",)) for name, data in _HEADS.items()]
    faults += [Fault(name, "chunks", data, "hang", ("broken", "error")) for name, data in _CHUNKS.items()]
    faults += [Fault(name, "more", data, "stay", ("whole", "error")) for name, data in _MORE.items()]
    faults += [Fault(name, "clear", data, "stay", ("whole",)) for name, data in _CLEAR.items()]
    faults += [
        Fault("no length, closed", "unframed", _head() + BODY, "close", ("whole",)),
        Fault("no length, reset", "unframed", _head() + BODY, "reset", ("broken", "error")),
        Fault("no length, silent", "unframed", _head() + BODY, "hang", ("broken", "error")),
        Fault("status 999", "status", _length(line=b"HTTP/1.1 999 Odd"), "stay", ("whole",), status=999),
        Fault(
            "a 204 with a body",
            "status",
            _length(line=b"HTTP/1.1 204 No Content"),
            "stay",
            ("whole", "error"),
            b"",
            204,
        ),
    ]
    return faults


pytestmark = pytest.mark.asyncio(loop_scope="module")

KEEP_ALIVE: Final = b": keep-alive\n\n"
# The upstream's silence is awaited this long.
IDLE_SECONDS: Final = 0.3
_NUMBERS = count()


@dataclass(frozen=True)
class Setting:
    """A client's way to ask. is_committed: a summary is waited for first, so a keep-alive has been sent."""

    name: str
    target: str = "/v1/chat/completions"
    method: str = "POST"
    version: bytes = b"1.1"
    is_streaming: bool = True
    asks_for_usage: bool = True
    is_committed: bool = False

    def render(self, number: int, tenant: str) -> bytes:
        fields: dict[str, Any] = {"user": f"fault-{number}"}
        if self.is_streaming:
            fields["stream"] = True
        if self.asks_for_usage:
            fields["stream_options"] = {"include_usage": True}
        if self.is_committed:
            fields["messages"] = make_long_history(number)
        body = make_chat(**fields) if self.method == "POST" else b""
        target = f"{self.target}?fault-{number}"
        headers = [("Authorization", f"Bearer sk-{tenant}"), ("Content-Type", "application/json")]
        request = render_request(target, body, headers, self.method)
        return request.replace(b"HTTP/1.1", b"HTTP/" + self.version, 1)


SETTINGS: Final = [
    Setting("stream"),
    Setting("edited stream", asks_for_usage=False),
    Setting("whole", is_streaming=False),
    Setting("relayed", target="/v1/other"),
    Setting("head", target="/v1/models", method="HEAD"),
    Setting("old stream", version=b"1.0"),
    Setting("old whole", version=b"1.0", is_streaming=False),
    Setting("committed stream", is_committed=True),
    Setting("committed whole", is_committed=True, is_streaming=False),
]
# On a new connection or on one that was used before; in one piece or in two.
CONNECTIONS: Final = ["new", "used"]
PIECES: Final = [1, 2]


def make_long_history(number: int) -> list[dict[str, str]]:
    """More than the window of the model, so that a summary is needed."""
    text = f"fault-{number} " + "many words about nothing at all " * 40
    turns = [{"role": role, "content": text} for _ in range(8) for role in ("user", "assistant")]
    return [*turns, {"role": "user", "content": "And now?"}]


def list_cases() -> list[ParameterSet]:
    """By default each fault once, and all pairs of its kind, a setting, a connection and the pieces."""
    rows = list(product(list_faults(), SETTINGS, CONNECTIONS, PIECES))
    kinds = [(fault.kind, setting.name, connection, size) for fault, setting, connection, size in rows]
    faults = [(fault.name, fault.ending) for fault, *_ in rows]
    chosen = {*choose_cover(kinds), *choose_cover(faults)}
    return choose_rows(rows, sorted(chosen))


def name_value(value: Fault | Setting | str | int) -> str:
    if isinstance(value, Fault):
        return f"{value.name}, {value.ending}"
    return value.name if isinstance(value, Setting) else str(value)


class Room:
    """A gateway, its upstream, and the upstream of its summaries, which come once they may.

    Of its two tenants, one does not wait for an upstream that is silent. Both share its connections.
    """

    def __init__(self, upstream: RawUpstream, summarizer: RawUpstream, port: int) -> None:
        self.upstream = upstream
        self.summarizer = summarizer
        self.port = port
        self._may_come = asyncio.Event()
        summarizer.script = self._summarize

    async def _summarize(self, _: Received, writer: asyncio.StreamWriter) -> None:
        await self._may_come.wait()
        message = {"role": "assistant", "content": "Many words were said, about nothing at all."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        writer.write(render_answer(json.dumps({"choices": [choice]}).encode()))

    def set_fault(self, fault: Fault, pieces: int) -> None:
        """Requests for the fault get it; all others get what they name."""

        async def respond(received: Received, writer: asyncio.StreamWriter) -> None:
            if b"fault-" not in received.head.line:
                writer.write(render_answer(received.body))
                return
            size = len(fault.data) // pieces + 1
            await writing(*[fault.data[at : at + size] for at in range(0, len(fault.data), size)])(
                received, writer
            )
            await end(writer, fault.ending)

        self.upstream.script = respond

    async def ask(self, setting: Setting, number: int, tenant: str) -> Got:
        """Lets the summary come when the keep-alive has come."""
        self._may_come.clear()
        async with connecting(self.port) as connection:
            await connection.send(setting.render(number, tenant))
            if setting.is_committed:
                await _wait_for_keep_alive(connection)
            self._may_come.set()
            return await connection.receive(setting.method)

    async def hang_up(self) -> None:
        await self.upstream.hang_up()
        await self.summarizer.hang_up()

    async def check_next(self, number: int) -> None:
        """Any other request gets its own response."""
        body = make_chat(user=f"next-{number}")
        async with connecting(self.port) as connection:
            key = ("Authorization", "Bearer sk-patient")
            got = await connection.ask(render_request("/v1/other", body, [key]))
        assert (got.status, got.body, got.is_whole) == (200, body, True)


async def _wait_for_keep_alive(connection: Connection) -> None:
    """Nothing is taken from what the client will read."""
    reader = connection.reader
    head = await reader.readuntil(b"\r\n\r\n")
    reader_with_head = asyncio.StreamReader()
    reader_with_head.feed_data(head)
    connection.reader = reader_with_head
    asyncio.get_running_loop().create_task(_pump(reader, reader_with_head))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamReader) -> None:
    try:
        while data := await source.read(1 << 16):
            target.feed_data(data)
        target.feed_eof()
    except ConnectionError as error:
        target.set_exception(error)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def room() -> AsyncIterator[Room]:
    async with RawUpstream() as upstream, RawUpstream() as summarizer:
        yaml = (
            f'store: "memory:"\nupstreams:\n'
            f'  patient: {{base_url: "{upstream.base_url}", discover: false}}\n'
            f'  hasty: {{base_url: "{upstream.base_url}", discover: false, idle_seconds: {IDLE_SECONDS}}}\n'
            f'  other: {{base_url: "{summarizer.base_url}", discover: false}}\n'
            f'models:\n  - {{match: "m", context: 3000}}\n'
            f"keepalive: {{after_seconds: 0.01}}\n"
            f"policies: {{default: {{summary: {{upstream: other}}}}}}\n"
            f"tenants:\n"
            f"  - {{name: patient, keys: [sk-patient], upstream: patient}}\n"
            f"  - {{name: hasty, keys: [sk-hasty], upstream: hasty}}\n"
        )
        async with serve(yaml) as gateway:
            yield Room(upstream, summarizer, gateway.port)


@pytest.mark.parametrize(("fault", "setting", "connection", "pieces"), list_cases(), ids=name_value)
async def test_a_fault_is_seen_for_what_it_is_and_only_by_the_request_that_met_it(
    room: Room, caplog: pytest.LogCaptureFixture, fault: Fault, setting: Setting, connection: str, pieces: int
) -> None:
    number = next(_NUMBERS)
    room.set_fault(fault, pieces)
    await room.hang_up()
    tasks = asyncio.all_tasks()
    if connection == "used":
        await room.check_next(number)
    got = await room.ask(setting, number, "hasty" if fault.ending == "hang" else "patient")
    assert find_sight(got, fault, setting) in list_sights(fault, setting)
    for _ in range(2):
        await room.check_next(number)
    await room.hang_up()
    await wait_until(lambda: asyncio.all_tasks() <= tasks)
    assert SECRET.decode() not in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def find_sight(got: Got, fault: Fault, setting: Setting) -> Sight | str:
    """What the client has seen; other words if it is none of the three."""
    if not got.is_whole:
        return "broken"
    if got.status in (502, 504):
        if setting.method == "HEAD":
            return "error"
        error = json.loads(got.body)["error"]
        is_clear = error["type"] == "upstream_error" and "http://127.0.0.1:" in error["message"]
        return "error" if is_clear and "Error" not in error["message"] else f"unclear: {error}"
    body = got.body.replace(KEEP_ALIVE, b"").lstrip(b" ")
    expected = b"" if setting.method == "HEAD" else fault.body
    if (got.status, body) == (fault.status, expected):
        return "whole"
    return f"other: {got}"


def list_sights(fault: Fault, setting: Setting) -> set[str]:
    if setting.method == "HEAD":
        # No body follows, so that none can be cut; bytes that come anyway answer nothing.
        return {"error"} if fault.sights == ("error",) else {"whole", "error"}
    if not setting.is_committed:
        return set(fault.sights)
    # The status 200 has been sent.
    is_error = "error" in fault.sights or fault.status != 200
    sights = {"broken"} if is_error else set()
    return sights | set(fault.sights) - {"error"}
