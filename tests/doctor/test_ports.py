"""Ports that are free, taken, or served by this gateway."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.toy.doctoring import find_bad, find_one, name_upstream, run_doctor
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

NOWHERE = 'store: "memory:"\n' + name_upstream("http://127.0.0.1:9/v1")


@contextmanager
def taken_port() -> Iterator[int]:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_a_port_that_another_program_has(tmp_path: Path) -> None:
    with taken_port() as port:
        text = f"listen: {{port: {port}}}\nadmin: {{port: 0}}\n{NOWHERE}"
        found = find_one(await run_doctor(tmp_path, text), "ports")
    assert f"port {port} on 127.0.0.1 is in use" in found.what
    assert "refold serve --port " in (found.fix or "")


async def test_an_address_of_another_machine(tmp_path: Path) -> None:
    ports = "listen: {host: 192.0.2.1, port: 8080}\nadmin: {port: 0}\n"
    text = f"{ports}{NOWHERE}tenants: [{{name: a, keys: [k]}}]\n"
    found = find_one(await run_doctor(tmp_path, text), "ports")
    assert "not an address of this machine" in found.what and "listen on 127.0.0.1" in (found.fix or "")


async def test_a_port_that_this_gateway_serves_is_well(tmp_path: Path) -> None:
    async with (
        ToyUpstream() as toy,
        running_gateway(make_settings(toy, more="admin: {port: 0}\n")) as gateway,
    ):
        ports = f"listen: {{port: {gateway.port}}}\nadmin: {{port: {gateway.admin_port}}}\n"
        found = await run_doctor(tmp_path, ports + NOWHERE)
    assert find_bad(found, "ports") == []
    told = [finding.what for finding in found if finding.subject == "ports"]
    assert all("is served by a gateway that is well" in what for what in told) and len(told) == 2


async def test_a_running_gateway_with_another_token(tmp_path: Path) -> None:
    more = "admin: {port: 0, token: a-token-of-this-gateway}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        admin = f"admin: {{port: {gateway.admin_port}, token: another-long-token}}\n"
        text = f"listen: {{port: 0}}\n{admin}{NOWHERE}"
        findings = await run_doctor(tmp_path, text)
    assert "another admin.token" in find_one(findings, "ports").what
    assert "another-long-token" not in repr(findings)
