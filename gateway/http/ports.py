"""Opens ports, and says why one could not be opened and what to do about it."""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from typing import Final

# Connections that wait to be accepted.
BACKLOG: Final = 1_024


async def bind_port(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at every address of the host. Raises OSError for a port that is taken."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    named = list(dict.fromkeys((entry[0], entry[4]) for entry in found))
    # A name may have an address of a family that this machine does not have.
    usable = [each for each in named if _has_family(each[0])] or named
    sockets: list[socket.socket] = []
    try:
        for family, address in usable:
            place = (address[0], sockets[0].getsockname()[1] if sockets and not port else address[1])
            sockets.append(socket.create_server(place, family=family, backlog=BACKLOG))
    except OSError:
        close_all(sockets)
        raise
    return sockets


def _has_family(family: int) -> bool:
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


async def bind_slots(host: str, port: int, slots: int) -> list[list[socket.socket]]:
    """The same addresses for each of several processes, so that each has new connections of its own: the
    system spreads them.

    Raises OSError for a port that is taken. Sockets that share a port would not notice, so one that does not
    share it tries first.
    """
    trying = await bind_port(host, port)
    addresses = [(each.family, each.getsockname()) for each in trying]
    close_all(trying)
    slots_sockets = [[_share(*address) for address in addresses] for _ in range(slots)]
    for sockets in slots_sockets:
        for bound in sockets:
            bound.listen(BACKLOG)
    return slots_sockets


def bind_beside(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """The same addresses once more. sockets: of another process of `bind_slots`, still open.

    Nothing comes to these before the process that gets them listens.
    """
    return [_share(each.family, each.getsockname()) for each in sockets]


def _share(family: int, address: tuple[str, int]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def is_listening(bound: socket.socket) -> bool:
    """Also for another process that has it."""
    return bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


def close_all(sockets: Sequence[socket.socket]) -> None:
    for bound in sockets:
        bound.close()


def describe_bind_error(host: str, port: int, error: OSError, option: str) -> str:
    """For the operator. option: that of the command line which names another port."""
    other = f"choose another one with {option} N"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: listen on 127.0.0.1, or on 0.0.0.0 for all of them"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use, perhaps by another gateway: {other}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} on {host} may not be opened by user {os.geteuid()}: {other}, above 1023"
    return f"port {port} on {host} cannot be opened ({error.strerror or type(error).__name__}): {other}"
