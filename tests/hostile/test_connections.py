"""Clients without a key cannot use up connections, descriptors or memory by waiting."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.hostile.process import linux_only, running_process
from tests.toy.gateway import RunningGateway, running_gateway
from tests.toy.running import wait_until
from tests.wire_through.raw import (
    Connection,
    Got,
    RawUpstream,
    ask,
    connecting,
    render_answer,
    render_chunks,
    render_request,
    writing,
)
from tests.wire_through.wiring import STREAMED, WHOLE, render_chat

MEBIBYTE = 1 << 20
LONG_SECONDS = 30.0


@asynccontextmanager
async def opening(bounds: str) -> AsyncIterator[tuple[RawUpstream, RunningGateway]]:
    async with RawUpstream() as upstream:
        yaml = (
            f'store: "memory:"\nadmin: {{port: 0, token: secret}}\nbounds: {{{bounds}}}\n'
            f'upstreams:\n  default: {{base_url: "{upstream.base_url}", discover: false}}\n'
        )
        async with running_gateway(yaml) as gateway:
            yield upstream, gateway


async def ask_health(port: int) -> int:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/healthz") as response:
        return response.status


async def receive(client: Connection) -> Got:
    async with asyncio.timeout(LONG_SECONDS):
        return await client.receive()


@pytest.mark.parametrize("bounds", ["connections: 3", "connections_per_address: 3"])
async def test_further_connections_are_refused_while_those_in_use_go_on(
    bounds: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opening(bounds) as (upstream, gateway), AsyncExitStack() as exits:
        upstream.script = writing(then="hang")
        clients = [await exits.enter_async_context(connecting(gateway.port)) for _ in range(3)]
        for client in clients:
            await client.send(render_chat(WHOLE))
        await wait_until(lambda: len(upstream.received) == 3)
        for _ in range(5):
            got = await ask(gateway.port, render_chat(WHOLE))
            assert (got.status, got.head.values("retry-after")) == (503, [b"1"])
            assert json.loads(got.body)["error"]["type"] == "server_error"
        assert len(upstream.received) == 3
        assert await ask_health(gateway.admin_port) == 200
        clients[0].writer.transport.abort()
        upstream.script = writing(render_answer())
        async with asyncio.timeout(LONG_SECONDS):
            while (await ask(gateway.port, render_chat(WHOLE))).status != 200:
                await asyncio.sleep(0.01)
    assert sum("too many connections" in message for message in caplog.messages) == 1


async def test_unused_connections_make_room_for_new_ones() -> None:
    async with opening("connections: 3") as (_, gateway), AsyncExitStack() as exits:
        for beginning in (b"", render_chat(WHOLE)[:10]):
            for _ in range(5):
                client = await exits.enter_async_context(connecting(gateway.port))
                await client.send(beginning)
        assert (await ask(gateway.port, render_chat(WHOLE))).status == 200


async def test_a_flood_of_requests_is_answered_or_refused_and_fails_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A connection whose request has just come is in use, though its handler has not begun."""
    async with opening("connections: 5") as (_, gateway), AsyncExitStack() as exits:
        clients = [await exits.enter_async_context(connecting(gateway.port)) for _ in range(3)]
        for client in clients:
            client.writer.write(render_chat(WHOLE))
        clients += [await exits.enter_async_context(connecting(gateway.port)) for _ in range(20)]
        for client in clients[:3]:
            assert (await receive(client)).status == 200
    assert not any("failed inside" in message for message in caplog.messages)


async def test_the_admin_port_has_a_health_page_without_a_token_and_bounds_of_its_own() -> None:
    async with opening("connections: 3") as (_, gateway), AsyncExitStack() as exits:
        port = gateway.admin_port
        assert await ask_health(port) == 200
        assert (await ask(port, render_request("/metrics", method="GET"))).status == 403
        page = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert (await ask(port, page)).status == 401
        unfinished = [await exits.enter_async_context(connecting(port)) for _ in range(3)]
        for client in unfinished:
            await client.send(page[:-2] + b"X-A: " + b"x" * 40_000)
            assert (await receive(client)).status == 431
        for _ in range(100):
            client = await exits.enter_async_context(connecting(port))
            await client.send(page[:-2])
        assert await ask_health(port) == 200


HALF = render_chat(WHOLE)[:-5]
CHUNKED = HALF.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"


@pytest.mark.parametrize("begun", [HALF, CHUNKED])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/other"])
async def test_a_body_that_stops_coming_ends_its_connection(begun: bytes, path: bytes) -> None:
    async with opening("stall_seconds: 0.3") as (_, gateway), connecting(gateway.port) as client:
        await client.send(begun.replace(b"/v1/chat/completions", path))
        assert (await receive(client)).status == 408
        assert await client.reader.read() == b""


async def test_a_client_that_does_not_read_its_response_is_cut_off() -> None:
    async with opening("stall_seconds: 0.5") as (upstream, gateway), connecting(gateway.port) as client:
        upstream.script = writing(*render_chunks([b"data: " + b"x" * MEBIBYTE + b"\n\n"] * 200))
        await client.send(render_chat(STREAMED))
        await wait_until(lambda: bool(upstream.received and upstream.received[0].hung_up_at), LONG_SECONDS)


@linux_only
async def test_clients_that_do_not_read_cost_little_memory(tmp_path: Path) -> None:
    """One of them took 2.3 MiB when both sides read ahead."""
    count = 30
    events = (b"data: " + b"x" * 500 + b"\n\n") * 40
    async with RawUpstream() as upstream, AsyncExitStack() as exits:
        upstream.script = writing(*render_chunks([events] * 3_000))
        yaml = (
            f'store: "memory:"\nupstreams:\n  default: {{base_url: "{upstream.base_url}", discover: false}}\n'
        )
        gateway = await exits.enter_async_context(running_process(yaml, tmp_path))
        assert (await ask(gateway.port, render_request("/healthz", method="GET"))).status == 200
        before = gateway.rss_bytes
        for _ in range(count):
            client = await exits.enter_async_context(connecting(gateway.port))
            await client.send(render_chat(STREAMED))
        await wait_until(lambda: len(upstream.received) == count, LONG_SECONDS)
        # Long enough for most of what can come on the way; a slow machine only makes the test easier.
        await asyncio.sleep(3)
        assert gateway.peak_rss_bytes - before < count * MEBIBYTE


async def test_a_client_that_waits_for_a_slow_upstream_is_not_cut_off() -> None:
    async with opening("stall_seconds: 0.2, head_seconds: 0.2") as (upstream, gateway):

        async def answer_late(_: object, writer: asyncio.StreamWriter) -> None:
            head, *rest = render_chunks([b"data: {}\n\n"])
            for piece in (head, *rest):
                await asyncio.sleep(0.5)
                writer.write(piece)

        upstream.script = answer_late
        async with connecting(gateway.port) as client:
            await client.send(render_chat(STREAMED))
            got = await receive(client)
        assert (got.status, got.is_whole) == (200, True)
