"""Whatever an upstream sends, a client sees it whole, sees a clear error, or sees that it is broken; and the
next requests get their own responses.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count, product
from typing import Any, Final

import pytest
import pytest_asyncio
from _pytest.mark.structures import ParameterSet

from tests.covering import choose_cover, choose_rows
from tests.properties.upstream_faults import SECRET, Fault, Sight, list_faults
from tests.toy.product import serve
from tests.toy.raw import (
    Connection,
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
