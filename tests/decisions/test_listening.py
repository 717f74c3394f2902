"""Ports: workers share connections, a port that cannot be opened is explained, a loop is recognized."""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import httpx2 as httpx
import pytest
from aiohttp import web

from gateway.admin.event_stream import EventStream
from gateway.doctor.upstream_api import examine_upstream
from gateway.downstream.bind_errors import describe_bind_error
from gateway.downstream.shared_port import SharedPort, bind_port
from gateway.downstream.tally import Tally
from gateway.reporting.events import Bus
from gateway.settings import Listen
from gateway.upstream.loop_guard import leads_to_itself
from tests.builders.upstream import make_upstream
from tests.toy.certificates import make_certificates, make_expired
from tests.toy.diagnosis import serving_models
from tests.toy.running import wait_until


class _Line(asyncio.Protocol):
    def __init__(self, port: SharedPort, taken: set[asyncio.BaseTransport]) -> None:
        self._port = port
        self._taken = taken

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._taken.add(transport)
        self._port.note_count(len(self._taken))


class Workers:
    """Listeners in one process, each with a descriptor of its own, as processes have."""

    def __init__(self, listening: socket.socket, count: int) -> None:
        self.tally = Tally.create(count)
        self.ports = [SharedPort([listening.dup()], self.tally, worker) for worker in range(count)]
        self.taken = [set[asyncio.BaseTransport]() for _ in range(count)]
        for port, taken in zip(self.ports, self.taken, strict=True):
            port.open(lambda port=port, taken=taken: _Line(port, taken))  # type: ignore[misc]
            port.note_count(0)

    @property
    def counts(self) -> list[int]:
        return [len(taken) for taken in self.taken]


@asynccontextmanager
async def working(count: int, connections: int) -> AsyncIterator[Workers]:
    """So many workers; so many clients connect when the block has begun."""
    (listening,) = await bind_port("127.0.0.1", 0)
    workers = Workers(listening, count)
    port = listening.getsockname()[1]
    opening = [asyncio.create_task(asyncio.open_connection("127.0.0.1", port)) for _ in range(connections)]
    try:
        yield workers
    finally:
        for _, writer in await asyncio.gather(*opening):
            writer.transport.abort()
        for shared in workers.ports:
            shared.close()
        for transport in set().union(*workers.taken):
            transport.abort()  # type: ignore[attr-defined]  # a transport of a socket
        listening.close()
        await asyncio.sleep(0.01)
        workers.tally.close()


async def test_a_burst_of_connections_is_spread_evenly() -> None:
    async with working(4, 80) as workers:
        await wait_until(lambda: sum(workers.counts) == 80)
        assert max(workers.counts) - min(workers.counts) <= 1


async def test_new_connections_go_to_whoever_has_fewest() -> None:
    async with working(2, 20) as workers:
        workers.ports[1].note_count(30)
        await wait_until(lambda: sum(workers.counts) == 20)
        assert workers.counts == [20, 0]


async def test_a_worker_that_does_not_answer_keeps_no_connection_waiting() -> None:
    async with working(2, 6) as workers:
        # By the tally the second one has fewest, but it does not look at the socket.
        workers.ports[1].close()
        workers.tally.write(1, 0)
        await wait_until(lambda: workers.counts == [6, 0])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EADDRINUSE, "x"), "port 80 on 10.0.0.1 is in use, perhaps by another gateway: choose"),
        (PermissionError(errno.EACCES, "x"), "may not be opened by user"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "10.0.0.1 is not an address of this machine"),
        (socket.gaierror(socket.EAI_NONAME, "x"), "10.0.0.1 is not an address of this machine"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "cannot be opened (Too many open files)"),
    ],
)
def test_each_error_names_its_fix(error: OSError, expected: str) -> None:
    text = describe_bind_error("10.0.0.1", 80, error, "--admin-port")
    assert expected in text
    assert "--admin-port N" in text or "0.0.0.0" in text


@pytest.mark.parametrize(
    ("base_url", "host", "expected"),
    [
        ("http://127.0.0.1:8080/v1", "127.0.0.1", True),
        ("http://localhost:8080", "127.0.0.1", True),
        ("http://127.0.0.1:8080/v1", "0.0.0.0", True),
        ("http://127.0.0.1:8081/v1", "127.0.0.1", False),
        ("http://127.0.0.2:8080/v1", "127.0.0.1", False),
        ("http://192.0.2.1:8080/v1", "0.0.0.0", False),
        ("https://127.0.0.1", "127.0.0.1", False),
    ],
)
def test_an_upstream_at_the_gateways_own_address_and_port_leads_to_itself(
    base_url: str, host: str, expected: bool
) -> None:
    assert leads_to_itself(make_upstream(base_url), Listen(host=host, port=0), 8080) == expected


async def test_a_certificate_that_has_expired_is_to_be_renewed(tmp_path: Path) -> None:
    """Not only accepted by hand."""
    certificates, tls = make_certificates(tmp_path), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*make_expired(tmp_path, certificates))
    trusting = ssl.create_default_context(cafile=str(certificates.ca))
    async with serving_models(tls=tls) as base_url, httpx.AsyncClient(verify=trusting) as client:
        report = await examine_upstream(client, make_upstream(base_url=base_url))
    (found,) = report.findings
    assert "expired" in found.what and "renew the certificate of 127.0.0.1" in str(found.fix)
    assert not report.is_usable


async def test_a_stream_of_events_is_kept_alive_while_nothing_happens() -> None:
    """Proxies close connections that are silent."""
    stream = EventStream(Bus(), alive_seconds=0.02)
    runner = web.ServerRunner(web.Server(stream.send), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with (
            asyncio.timeout(10),
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{runner.addresses[0][1]}/") as response,
        ):
            blocks = [await response.content.readuntil(b"\n\n") for _ in range(3)]
    finally:
        await runner.cleanup()
    assert blocks == [b": listening\n\n", *[b": keep-alive\n\n"] * 2]
