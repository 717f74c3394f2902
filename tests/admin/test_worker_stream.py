"""A worker's events wait for its supervisor, and its last words are its metrics."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from gateway.admin.worker_stream import WorkerStream
from gateway.reporting.events import Bus, Pruned
from gateway.reporting.metrics import Metrics


@asynccontextmanager
async def serving(stream: WorkerStream) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(stream.send, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def prune(bus: Bus, marks: int) -> None:
    bus.publish(Pruned(session_id="c", tenant="t", marks=marks, saved_tokens=0))


async def read_marks(response: aiohttp.ClientResponse) -> int:
    block = await response.content.readuntil(b"\n\n")
    marks: int = json.loads(block.partition(b"data: ")[2])["marks"]
    return marks


async def test_events_wait_until_somebody_listens() -> None:
    bus = Bus()
    async with serving(WorkerStream(bus, Metrics())) as url, aiohttp.ClientSession() as client:
        prune(bus, 1)
        prune(bus, 2)
        async with client.get(url) as heard:
            assert [await read_marks(heard) for _ in range(2)] == [1, 2]
            prune(bus, 3)
            assert await read_marks(heard) == 3


async def test_the_stream_ends_with_the_metrics() -> None:
    bus, metrics = Bus(), Metrics()
    stream = WorkerStream(bus, metrics)
    async with serving(stream) as url, aiohttp.ClientSession() as client, client.get(url) as heard:
        prune(bus, 1)
        metrics.count_pruning()
        await stream.close()
        blocks = (await heard.content.read()).decode().split("\n\n")
    assert blocks[0].startswith("event: pruned\n")
    name, _, data = blocks[1].partition("\ndata: ")
    assert (name, json.loads(data)) == ("event: farewell", metrics.render().decode())
    assert blocks[2:] == [""]
    assert bus.subscribers == 0


async def test_closing_waits_for_nobody_who_does_not_listen() -> None:
    bus = Bus()
    stream = WorkerStream(bus, Metrics())
    prune(bus, 1)
    await stream.close()
    assert bus.subscribers == 0
