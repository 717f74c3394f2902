"""Are the ports free, or does this gateway serve them already, and with this token?"""

import errno
import http.client
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import msgspec

from gateway.command_line.health import choose_loopback
from gateway.doctor.finding import Diagnosis, blame, note_ok
from gateway.http.ports import describe_bind_error
from gateway.settings import Settings

_SUBJECT: Final = "ports"
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
        yield from _examine_token(settings)


def _examine_port(name: str, host: str, port: int, option: str) -> Iterator[Diagnosis]:
    if port == 0:
        yield note_ok(_SUBJECT, f"{name}: the system will choose a free one")
        return
    error = _try_to_open(host, port)
    if error is None:
        yield note_ok(_SUBJECT, f"{name} {port} on {host} is free")
    elif error.errno == errno.EADDRINUSE and _is_gateway(host, port):
        yield note_ok(_SUBJECT, f"{name} {port} on {host} is served by a gateway that is well")
    else:
        what, _, fix = describe_bind_error(host, port, error, option).rpartition(": ")
        yield blame(
            _SUBJECT, f"{name}: {what}", f"{fix}, such as: refold serve {option} {min(port, 65_000) + 10}"
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
    status, body = _ask(host, port, _HEALTH, {})
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return status == http.client.OK and isinstance(value, dict) and value.get("status") == "ok"


def _examine_token(settings: Settings) -> Iterator[Diagnosis]:
    token = settings.admin.token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token is not None else {}
    status, _ = _ask(settings.admin.host, settings.admin.port, _GUARDED, headers)
    if status == http.client.UNAUTHORIZED:
        what = "the gateway that runs has another admin.token than these settings"
        yield blame(_SUBJECT, what, "reload it (kill -HUP PID), or set GATEWAY_ADMIN_TOKEN to its token")


def _ask(host: str, port: int, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
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
