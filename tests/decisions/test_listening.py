"""Ports: one that cannot be opened is explained, a loop is recognized."""

import asyncio
import errno
import os
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.admin.event_stream import EventStream
from gateway.doctor.upstreams import examine_upstream
from gateway.http.client import Client
from gateway.http.failures import leads_to_itself
from gateway.http.ports import describe_bind_error
from gateway.reporting.events import Bus
from gateway.settings import Listen
from tests.builders.upstream import make_upstream
from tests.toy.certificates import make_certificates, make_expired
from tests.toy.diagnosis import serving_models


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
    async with serving_models(tls=tls) as base_url, Client() as client:
        trusting = make_upstream(base_url=base_url, ca_file=str(certificates.ca))
        report = await examine_upstream(client, trusting)
    found = report.finding
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
