"""This machine and the settings alone: search, clock, ports, file descriptors, and who can reach what."""

import errno
import http.client
import os
import resource
import time
from collections.abc import AsyncIterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.bounds.process import find_most_connections
from gateway.command_line.health import choose_loopback
from gateway.doctor.finding import Diagnosis, Examined, blame, note_ok, warn
from gateway.http.ports import bind_port, close_all, describe_bind_error
from gateway.originals.index import find_obstacle
from gateway.settings import Settings, describe_exposure, is_loopback, shows_texts
from gateway.settings.show import is_for_this_machine_only

# Signed webhooks are refused after some minutes; a response takes some seconds.
_MOST_SECONDS: Final = 60.0
_HOUR: Final = 3_600.0
_TIMEOUT_SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 16
# File descriptors beside two for each connection.
_OTHERS: Final = 256
_SHORTEST_TOKEN: Final = 16
_NEW_TOKEN: Final = "export GATEWAY_ADMIN_TOKEN=$(openssl rand -hex 32)"


async def check_settings(examined: Examined) -> AsyncIterator[Diagnosis]:
    yield note_ok(f"valid: {examined.file or 'the built-in settings: no --config FILE is given'}")
    for problem in examined.settings.warnings:
        yield warn(str(problem), f"change {problem.where}")


async def check_search(_: Examined) -> AsyncIterator[Diagnosis]:
    """Can originals be searched with the SQLite of this Python?"""
    obstacle = find_obstacle()
    if obstacle is None:
        yield note_ok("originals can be searched")
    else:
        what = f"originals cannot be searched, everything else works: {obstacle}"
        yield warn(what, "use a Python whose SQLite is 3.34 or later, with FTS5")


async def check_clock(examined: Examined) -> AsyncIterator[Diagnosis]:
    """The upstreams' `Date` headers tell, to a second."""
    here = time.time()
    offsets = {
        name: here - seconds
        for name, report in examined.reports.items()
        if (seconds := _parse_date(report.date)) is not None
    }
    if not offsets:
        return
    name, offset = min(offsets.items(), key=lambda pair: abs(pair[1]))
    if abs(offset) <= _MOST_SECONDS:
        yield note_ok(f"agrees with {name}, to some seconds")
        return
    way = "ahead of" if offset > 0 else "behind"
    shown = f"{abs(offset) / _HOUR:.1f} hours" if abs(offset) >= _HOUR / 2 else f"{abs(offset):.0f} seconds"
    yield warn(f"this clock is {shown} {way} that of {name}", "timedatectl set-ntp true")


def _parse_date(date: str) -> float | None:
    """Unix time; None if it is not a date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None


async def check_ports(examined: Examined) -> AsyncIterator[Diagnosis]:
    """Are they free, or does this gateway serve them already, and with this token?"""
    listen, admin = examined.settings.listen, examined.settings.admin
    yield await _examine_port("data port", listen.host, listen.port, "--port")
    yield await _examine_port("admin port", admin.host, admin.port, "--admin-port")
    if examined.has_other_token and _is_gateway(admin.host, admin.port):
        what = "the gateway that runs has another admin.token than these settings"
        yield blame(what, "reload it (kill -HUP PID), or set GATEWAY_ADMIN_TOKEN to its token")


async def _examine_port(name: str, host: str, port: int, option: str) -> Diagnosis:
    if port == 0:
        return note_ok(f"{name}: the system will choose a free one")
    try:
        close_all(await bind_port(host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _is_gateway(host, port):
            return note_ok(f"{name} {port} on {host} is served by a gateway that is well")
        what, _, fix = describe_bind_error(host, port, error, option).rpartition(": ")
        return blame(f"{name}: {what}", f"{fix}, such as: refold serve {option} {min(port, 65_000) + 10}")
    return note_ok(f"{name} {port} on {host} is free")


def _is_gateway(host: str, port: int) -> bool:
    """Whether what answers there says that it is well as a gateway does."""
    with closing(http.client.HTTPConnection(choose_loopback(host), port, timeout=_TIMEOUT_SECONDS)) as asked:
        try:
            asked.request("GET", "/healthz")
            response = asked.getresponse()
            value = msgspec.json.decode(response.read(_MOST_BYTES))
        except (OSError, http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError):
            return False
    return response.status == http.client.OK and isinstance(value, dict) and value.get("status") == "ok"


async def check_process(examined: Examined) -> AsyncIterator[Diagnosis]:
    """The gateway raises the soft limit to the hard one, so the hard one counts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = examined.settings.bounds.connections
    most = wanted if hard == resource.RLIM_INFINITY else find_most_connections(hard)
    if most < wanted:
        needed = 2 * wanted + _OTHERS
        what = f"{hard:,} file descriptors allow {most:,} connections, and bounds.connections is {wanted:,}"
        yield warn(what, f"ulimit -Hn {needed}  # in systemd: LimitNOFILE={needed}")
    else:
        yield note_ok(f"file descriptors suffice for {wanted:,} connections")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield note_ok(f"cores: {cores}; one process uses one of them, see refold serve --workers N")


async def check_exposure(examined: Examined) -> AsyncIterator[Diagnosis]:
    """Who can reach the ports, and what protects them."""
    settings = examined.settings
    exposure = describe_exposure(settings)
    if exposure is not None:
        fix = "listen: {host: 127.0.0.1}  # or set `tenants`, as docs/configuration.md shows"
        yield warn(exposure, fix)
    elif settings.tenants:
        yield note_ok(f"data port: {len(settings.tenants)} tenants with keys of their own")
    else:
        yield note_ok(f"data port: only this machine reaches {settings.listen.host}")
    yield _examine_token(settings)
    for upstream in settings.upstreams.values():
        host = urlsplit(upstream.base_url).hostname or ""
        if upstream.base_url.startswith("http://") and upstream.api_key is not None and not is_loopback(host):
            what = f"upstream {upstream.name}: its api_key travels unencrypted to {host}"
            yield warn(what, f"base_url: https://{upstream.base_url.removeprefix('http://')}")


def _examine_token(settings: Settings) -> Diagnosis:
    token = settings.admin.token
    shown = ", ".join(name for name, policy in settings.policies.items() if shows_texts(settings, policy))
    if token is not None and len(token.get_secret_value()) < _SHORTEST_TOKEN:
        return warn(f"admin.token has less than {_SHORTEST_TOKEN} characters", _NEW_TOKEN)
    if token is not None:
        return note_ok("admin port: with a token")
    if not shown:
        return note_ok("admin port: without a token, so it shows no texts of conversations")
    if is_for_this_machine_only(settings):
        return note_ok("admin port: without a token; it shows texts of conversations on this machine")
    what = f"admin port: without a token, and `show_texts` shows texts of conversations by policy {shown}"
    return warn(what, _NEW_TOKEN)
