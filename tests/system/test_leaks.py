"""What ends badly leaves nothing behind: no object of the product in memory, and no open socket. What never
ends costs little.

Without the collector only objects without references go. It looks rarely at a process that holds a hundred
thousand objects, so what waits for it can be a gigabyte.
"""

import asyncio
import gc
import os
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress

import pytest
import pytest_asyncio

from tests.toy.product import serve
from tests.toy.raw import (
    Connection,
    Ending,
    RawUpstream,
    Received,
    Script,
    connecting,
    render_answer,
    render_chunks,
    writing,
)
from tests.toy.running import wait_until
from tests.toy.wire import STREAMED, WHOLE, Wire, make_chat, opening_wire, render_chat

CHUNK = b"data: " + b"x" * 50_000 + b"\n\n"
# Without words it would be held back, as it might be the beginning of a refusal.
HELLO = b'data: {"choices":[{"index":0,"delta":{"content":"Hi."}}]}\n\n'
BODY = make_chat(stream=True, messages=[{"role": "user", "content": "y" * 100_000}])
Until = Callable[[Wire, Connection], Awaitable[None]]
# A request that stays is far more objects, with all that hangs on it.
FEW = 3
REQUESTS = 60


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
    """Objects of the product's own classes."""
    return sum(str(type(held).__module__).startswith("gateway.") for held in gc.get_objects())


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
    wire: Wire, script: Script, sent: bytes, until: Until
) -> None:
    wire.upstream.script = script
    # What the first one leaves is what the gateway knows of its conversation, and counts.
    await hang_up(wire, sent, until)
    before = count_held()
    await hang_up(wire, sent, until)
    await wait_until(lambda: count_held() <= before + FEW, 10)


async def hang_up(wire: Wire, sent: bytes, until: Until) -> None:
    wire.upstream.received.clear()
    async with wire.connecting() as client:
        await client.send(sent)
        async with asyncio.timeout(30):
            await until(wire, client)
    await wire.upstream.hang_up()
    # Not until all is at rest: how a request ended that broke off is written later.
    await asyncio.sleep(0.05)


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")


async def leave_after(port: int, turns: int) -> None:
    """turns: of the event loop. With each the request comes a little further."""
    async with connecting(port) as client:
        await client.send(render_chat(WHOLE))
        for _ in range(turns):
            await asyncio.sleep(0)


@needs_proc
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_clients_that_leave_while_the_upstream_is_connected_to_leave_no_socket(scheme: str) -> None:
    """Over TLS the handshake never ends, because the upstream is silent."""
    async with RawUpstream(HANG) as upstream:
        url = upstream.base_url.replace("http", scheme, 1)
        settings = f'store: "memory:"\nupstreams: {{default: {{base_url: "{url}", discover: false}}}}\n'
        async with serve(settings) as product:
            before = count_descriptors()
            for turns in range(REQUESTS):
                await leave_after(product.port, turns % 30)
            await product.at_rest()
            await upstream.hang_up()
            await wait_until(lambda: count_descriptors() <= before)


@needs_proc
@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 101 Odd\r\n\r\n", b"no HTTP\r\n\r\n", render_answer()[:-1]]
)
async def test_requests_that_fail_leave_no_socket(wire: Wire, answer: bytes, ending: Ending) -> None:
    wire.upstream.script = writing(answer, then=ending)
    before = count_descriptors()
    for _ in range(REQUESTS // 4):
        got = await wire.chat(WHOLE)
        assert got.status == 502 or not got.is_whole
    await wait_until(lambda: count_descriptors() <= before)


MEBIBYTE = 1 << 20


@pytest.mark.usefixtures("traced")
async def test_clients_that_do_not_read_cost_little_memory() -> None:
    """One of them took 2.3 MiB when both sides read ahead."""
    count = 20
    events = (b"data: " + b"x" * 500 + b"\n\n") * 40
    async with opening_wire() as wire, AsyncExitStack() as exits:
        wire.upstream.script = writing(*render_chunks([events] * 300))
        assert (await wire.chat(WHOLE)).status == 200
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count):
            client = await exits.enter_async_context(wire.connecting())
            # Nothing that is in the client counts.
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(render_chat(STREAMED))
        await wait_until(lambda: len(wire.upstream.received) == count + 1)
        # As much as can come on the way.
        for _ in range(2_000):
            await asyncio.sleep(0)
        assert tracemalloc.get_traced_memory()[1] - before < count * MEBIBYTE


@pytest.mark.usefixtures("traced")
async def test_unfinished_heads_do_not_swell_memory(wire: Wire) -> None:
    """Eight of them took 245 MB when only the length and the number of the headers were bounded."""
    async with AsyncExitStack() as exits:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(8):
            client = await exits.enter_async_context(wire.connecting())
            with suppress(ConnectionError):
                await send_headers(client)
        assert tracemalloc.get_traced_memory()[1] - before < 8 * MEBIBYTE


async def send_headers(client: Connection) -> None:
    """As many as the library takes, of the length that it takes."""
    await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n")
    for number in range(100):
        await client.send(b"X-%d: " % number + b"x" * 60_000 + b"\r\n")
