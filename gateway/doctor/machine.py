"""This machine and the settings alone: search, clock, ports, file descriptors, and who can reach what."""

import errno
import http.client
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.bounds.process import find_most_connections
from gateway.command_line.health import choose_loopback
from gateway.doctor.finding import Diagnosis, blame, note_ok, warn
from gateway.http.ports import describe_bind_error
from gateway.originals.index_file import find_obstacle
from gateway.settings import Settings, SettingsError, describe_exposure, is_loopback, shows_texts
from gateway.settings.show import is_for_this_machine_only


def examine_errors(error: SettingsError) -> Iterator[Diagnosis]:
    """Settings that do not load. Each problem names its line, and never the value there."""
    for problem in error.problems:
        yield blame(
            "settings", str(problem), f"correct {problem.where}; `refold schema` helps editors to do it"
        )


def examine_settings(settings: Settings, file: str | None) -> Iterator[Diagnosis]:
    source = file or "the built-in settings: no --config FILE is given"
    yield note_ok("settings", f"valid: {source}")
    for problem in settings.warnings:
        yield warn("settings", str(problem), f"change {problem.where}")


def examine_search() -> Iterator[Diagnosis]:
    """Can originals be searched with the SQLite of this Python?"""
    obstacle = find_obstacle()
    if obstacle is None:
        yield note_ok("search", "originals can be searched")
    else:
        what = f"originals cannot be searched, everything else works: {obstacle}"
        yield warn("search", what, "use a Python whose SQLite is 3.34 or later, with FTS5")


# The clock: the upstreams' `Date` headers tell, to a second

# Signed webhooks are refused after some minutes; a response takes some seconds.
_MOST_SECONDS: Final = 60.0
_HOUR: Final = 3_600.0


def examine_clock(dates: dict[str, str]) -> Iterator[Diagnosis]:
    """dates: the header of each upstream that sent one."""
    here = time.time()
    offsets = {
        name: here - seconds for name, date in dates.items() if (seconds := _parse_date(date)) is not None
    }
    if not offsets:
        return
    name, offset = min(offsets.items(), key=lambda pair: abs(pair[1]))
    if abs(offset) <= _MOST_SECONDS:
        yield note_ok("clock", f"agrees with {name}, to some seconds")
        return
    way = "ahead of" if offset > 0 else "behind"
    shown = f"{abs(offset) / _HOUR:.1f} hours" if abs(offset) >= _HOUR / 2 else f"{abs(offset):.0f} seconds"
    yield warn("clock", f"this clock is {shown} {way} that of {name}", "timedatectl set-ntp true")


def _parse_date(date: str) -> float | None:
    """Unix time; None if it is not a date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError):
        return None


# The ports: are they free, or does this gateway serve them already, and with this token?

_TIMEOUT_SECONDS: Final = 3.0
_HEALTH: Final = "/healthz"
_GUARDED: Final = "/api/conversations?limit=1"
_MOST_BYTES: Final = 1 << 16


def examine_ports(settings: Settings) -> Iterator[Diagnosis]:
    listen, admin = settings.listen, settings.admin
    yield from _examine_port("data port", listen.host, listen.port, "--port")
    is_served = False
    for finding in _examine_port("admin port", admin.host, admin.port, "--admin-port"):
        is_served = "served" in finding.what and finding.level == "ok"
        yield finding
    if is_served:
        yield from _examine_running_token(settings)


def _examine_port(name: str, host: str, port: int, option: str) -> Iterator[Diagnosis]:
    if port == 0:
        yield note_ok("ports", f"{name}: the system will choose a free one")
        return
    error = _try_to_open(host, port)
    if error is None:
        yield note_ok("ports", f"{name} {port} on {host} is free")
    elif error.errno == errno.EADDRINUSE and _is_gateway(host, port):
        yield note_ok("ports", f"{name} {port} on {host} is served by a gateway that is well")
    else:
        what, _, fix = describe_bind_error(host, port, error, option).rpartition(": ")
        yield blame(
            "ports", f"{name}: {what}", f"{fix}, such as: refold serve {option} {min(port, 65_000) + 10}"
        )


def _try_to_open(host: str, port: int) -> OSError | None:
    """None if it could be opened, as the gateway would."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind, protocol)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
    except OSError as error:
        return error
    return None


def _is_gateway(host: str, port: int) -> bool:
    status, body = _ask_port(host, port, _HEALTH, {})
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return status == http.client.OK and isinstance(value, dict) and value.get("status") == "ok"


def _examine_running_token(settings: Settings) -> Iterator[Diagnosis]:
    token = settings.admin.token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token is not None else {}
    status, _ = _ask_port(settings.admin.host, settings.admin.port, _GUARDED, headers)
    if status == http.client.UNAUTHORIZED:
        what = "the gateway that runs has another admin.token than these settings"
        yield blame("ports", what, "reload it (kill -HUP PID), or set GATEWAY_ADMIN_TOKEN to its token")


def _ask_port(host: str, port: int, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and the beginning of the body; 0 if nothing answered."""
    connection = http.client.HTTPConnection(choose_loopback(host), port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


# What this machine gives a process

# Beside two for each connection.
_OTHERS: Final = 256


def examine_process(settings: Settings) -> Iterator[Diagnosis]:
    """The gateway raises the soft limit to the hard one, so the hard one counts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.bounds.connections
    most = wanted if hard == resource.RLIM_INFINITY else find_most_connections(hard)
    if most < wanted:
        needed = 2 * wanted + _OTHERS
        what = f"{hard:,} file descriptors allow {most:,} connections, and bounds.connections is {wanted:,}"
        yield warn("process", what, f"ulimit -Hn {needed}  # in systemd: LimitNOFILE={needed}")
    else:
        yield note_ok("process", f"file descriptors suffice for {wanted:,} connections")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield note_ok("process", f"cores: {cores}; one process uses one of them, see refold serve --workers N")


# Who can reach the ports, and what protects them

_SHORTEST_TOKEN: Final = 16
_NEW_TOKEN: Final = "export GATEWAY_ADMIN_TOKEN=$(openssl rand -hex 32)"


def examine_exposure(settings: Settings) -> Iterator[Diagnosis]:
    exposure = describe_exposure(settings)
    if exposure is not None:
        yield warn(
            "exposure",
            exposure,
            "listen: {host: 127.0.0.1}  # or set `tenants`, as docs/configuration.md shows",
        )
    elif settings.tenants:
        yield note_ok("exposure", f"data port: {len(settings.tenants)} tenants with keys of their own")
    else:
        yield note_ok("exposure", f"data port: only this machine reaches {settings.listen.host}")
    yield from _examine_token(settings)
    for upstream in settings.upstreams.values():
        host = urlsplit(upstream.base_url).hostname or ""
        if upstream.base_url.startswith("http://") and upstream.api_key is not None and not is_loopback(host):
            what = f"upstream {upstream.name}: its api_key travels unencrypted to {host}"
            yield warn("exposure", what, f"base_url: https://{upstream.base_url.removeprefix('http://')}")


def _examine_token(settings: Settings) -> Iterator[Diagnosis]:
    token = settings.admin.token
    shown = ", ".join(name for name, policy in settings.policies.items() if shows_texts(settings, policy))
    if token is None and shown and is_for_this_machine_only(settings):
        yield note_ok(
            "exposure", "admin port: without a token; it shows texts of conversations on this machine"
        )
    elif token is None and shown:
        what = f"admin port: without a token, and `show_texts` shows texts of conversations by policy {shown}"
        yield warn("exposure", what, _NEW_TOKEN)
    elif token is None:
        yield note_ok("exposure", "admin port: without a token, so it shows no texts of conversations")
    elif len(token.get_secret_value()) < _SHORTEST_TOKEN:
        yield warn("exposure", f"admin.token has less than {_SHORTEST_TOKEN} characters", _NEW_TOKEN)
    else:
        yield note_ok("exposure", "admin port: with a token")
