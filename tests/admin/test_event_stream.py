"""Events reach their listeners as server-sent events while they happen."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from aiohttp import web

from gateway.admin.event_stream import EventStream
from gateway.reporting.events import Bus, Pruned
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

LISTENING = b": listening\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


@asynccontextmanager
async def serving(stream: EventStream) -> AsyncIterator[str]:
    """The URL of a port that serves the stream."""
    server = web.Server(stream.send, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def read_block(stream: aiohttp.ClientResponse, passing: str = "") -> str:
    """The next one whose name is another."""
    while True:
        block = (await stream.content.readuntil(b"\n\n")).decode()
        if not block.startswith(f"event: {passing}\n"):
            return block


async def test_the_events_of_a_compaction_arrive_while_it_happens() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more="admin: {port: 0}\n")) as gateway,
    ):
        url = f"http://127.0.0.1:{gateway.admin_port}/api/events"
        async with aiohttp.ClientSession() as client, client.get(url) as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            assert await stream.content.readuntil(b"\n\n") == b": listening\n\n"
            run = await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
            blocks = [await read_block(stream, passing="activity") for _ in range(2)]
    names, data = zip(*(block.strip().split("\n") for block in blocks), strict=True)
    boundary, compacted = (json.loads(line.removeprefix("data: ")) for line in data)
    assert names == ("event: compact_boundary", "event: session.compacted")
    assert boundary["subtype"] == "compact_boundary"
    assert boundary["session_id"] == compacted["sessionID"]
    assert compacted["sessionID"] == run.answers[-1].header("x-gateway-conversation")


async def test_conversations_that_change_are_told_while_somebody_listens() -> None:
    async with (
        ToyUpstream() as toy,
        running_gateway(make_settings(toy, more="admin: {port: 0}\n")) as gateway,
    ):
        url = f"http://127.0.0.1:{gateway.admin_port}/api/events"
        async with aiohttp.ClientSession() as client, client.get(url) as stream:
            assert await read_block(stream) == ": listening\n\n"
            run = await run_session(make_session(2, 3), gateway.base_url, toy)
            async with asyncio.timeout(60):
                await wait_for_rows(stream, {run.conversation: len(run.answers)})


async def wait_for_rows(stream: aiohttp.ClientResponse, expected: dict[str, int]) -> None:
    """Reads on until the events `activity` have told these numbers of requests, by conversation."""
    told: dict[str, int] = {}
    while told != expected:
        name, _, data = (await stream.content.readuntil(b"\n\n")).decode().partition("\ndata: ")
        assert name == "event: activity"
        told |= {row["id"]: row["requests"] for row in json.loads(data)["conversations"]}


async def test_a_silent_stream_is_kept_alive_with_comments() -> None:
    bus = Bus()
    async with (
        serving(EventStream(bus, alive_seconds=0.01)) as url,
        aiohttp.ClientSession() as client,
        client.get(url) as stream,
    ):
        blocks = [await stream.content.readuntil(b"\n\n") for _ in range(3)]
        assert blocks == [LISTENING, KEEP_ALIVE, KEEP_ALIVE]
        bus.publish(Pruned(session_id="c", tenant="t", marks=1, saved_tokens=2))
        while (block := await stream.content.readuntil(b"\n\n")).startswith(b":"):
            pass
        assert block.startswith(b"event: pruned\ndata: {")


async def test_a_listener_that_hangs_up_is_unsubscribed() -> None:
    bus = Bus()
    async with serving(EventStream(bus, alive_seconds=0.01)) as url, aiohttp.ClientSession() as client:
        async with client.get(url) as stream:
            assert await stream.content.readuntil(b"\n\n") == LISTENING
            assert bus.subscribers
        async with asyncio.timeout(30):
            while bus.subscribers:
                await asyncio.sleep(0.005)


async def test_the_number_of_listeners_is_bounded() -> None:
    async with (
        serving(EventStream(Bus())) as url,
        aiohttp.ClientSession() as client,
        AsyncExitStack() as streams,
    ):
        for _ in range(32):
            stream = await streams.enter_async_context(client.get(url))
            assert await stream.content.readuntil(b"\n\n") == LISTENING
        async with client.get(url) as refused:
            assert refused.status == 503
            assert (await refused.json())["detail"] == "too many listeners"
