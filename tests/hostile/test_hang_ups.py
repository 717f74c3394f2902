"""A client that hangs up leaves nothing in memory, wherever its request was.

Without the collector only objects without references go. It looks rarely at a process that holds a hundred
thousand objects (`bounds/interpreter.py`), so what waits for it can be a gigabyte.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from gateway.conversations.turn import Turn
from gateway.downstream.connection import ClientConnection
from gateway.downstream.request import Request
from gateway.upstream.response import UpstreamResponse
from tests.toy.running import wait_until
from tests.wire_through.raw import Connection, Received, Script, render_answer, render_chunks, writing
from tests.wire_through.wiring import Wire, make_chat, opening_wire, render_chat

CHAT = "/v1/chat/completions"
CHUNK = b"data: " + b"x" * 50_000 + b"\n\n"
HELLO = b"data: {}\n\n"
BODY = make_chat(stream=True, messages=[{"role": "user", "content": "y" * 100_000}])
HELD = (Request, Turn, ClientConnection, UpstreamResponse)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest_asyncio.fixture
async def wire() -> AsyncIterator[Wire]:
    async with opening_wire(
        more="admin: {port: 0}\nbounds: {stall_seconds: 0.4, head_seconds: 0.4}\n"
    ) as wire:
        yield wire


def count_held() -> int:
    return sum(isinstance(held, HELD) for held in gc.get_objects())


async def wait_for_request(wire: Wire, _: Connection) -> None:
    await wait_until(lambda: len(wire.upstream.received) == 1)


async def wait_for_response(wire: Wire, client: Connection) -> None:
    await client.reader.readuntil(b"\r\n\r\n")


async def wait_a_moment(wire: Wire, client: Connection) -> None:
    await asyncio.sleep(0.1)


async def wait_for_the_end(wire: Wire, client: Connection) -> None:
    await client.reader.read()


async def reset(_: Received, writer: asyncio.StreamWriter) -> None:
    writer.write(render_chunks([HELLO])[0])
    await asyncio.sleep(0.05)
    writer.transport.abort()


def upload(size: int, body: bytes = b"x" * 1_000) -> bytes:
    return b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (size, body)


HANG = writing(then="hang")
FLOOD = writing(*render_chunks([CHUNK] * 400))
CHUNKED_CHAT = render_chat(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("script", "sent", "until"),
    [
        pytest.param(HANG, render_chat(BODY), wait_for_request, id="before the response"),
        pytest.param(HANG, upload(0, b""), wait_for_request, id="relayed, before the response"),
        pytest.param(HANG, upload(2_000_000), wait_a_moment, id="relayed, inside an upload"),
        pytest.param(
            writing(*render_chunks([HELLO])[:-1], then="hang"),
            render_chat(BODY),
            wait_for_response,
            id="inside a stream",
        ),
        pytest.param(FLOOD, render_chat(BODY), wait_a_moment, id="without reading a stream"),
        pytest.param(
            writing(render_answer(b"x" * 20_000_000)), render_chat(BODY), wait_a_moment, id="without reading"
        ),
        pytest.param(HANG, render_chat(BODY)[:-100], wait_a_moment, id="inside a body"),
        pytest.param(HANG, render_chat(BODY)[:-100], wait_for_the_end, id="after a stalled body"),
        pytest.param(HANG, upload(2_000_000), wait_for_the_end, id="after a stalled upload"),
        pytest.param(HANG, CHUNKED_CHAT + b"5\r\nhell", wait_for_the_end, id="after a stalled chunk"),
        pytest.param(HANG, CHUNKED_CHAT + b"5\r\nhello?\r\n", wait_for_the_end, id="after a malformed chunk"),
        pytest.param(HANG, render_chat(BODY)[:50], wait_for_the_end, id="after a stalled head"),
        pytest.param(reset, render_chat(BODY), wait_for_the_end, id="after a reset by the upstream"),
        pytest.param(writing(then="close"), render_chat(BODY), wait_for_response, id="after a 502"),
        pytest.param(
            writing(b"HTTP/1.1 400 No\r\nContent-Length: 99\r\n\r\n", then="hang"),
            render_chat(BODY),
            wait_a_moment,
            id="inside an error that is held back",
        ),
        pytest.param(HANG, b"no HTTP\r\n\r\n", wait_for_the_end, id="without HTTP"),
    ],
)
async def test_a_client_that_hangs_up_leaves_nothing_in_memory(
    wire: Wire, script: Script, sent: bytes, until: object
) -> None:
    assert callable(until)
    before = count_held()
    wire.upstream.script = script
    async with wire.connecting() as client:
        await client.send(sent)
        async with asyncio.timeout(30):
            await until(wire, client)
    await wire.upstream.hang_up()
    await wait_until(lambda: count_held() <= before, 10)
