"""One connection to the server, from login to its end. After any failure it is closed and not used again, so
no reply can be taken for that of another command.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Connection, SSLConnection
from redis.exceptions import RedisError, ResponseError

from gateway.store.redis.address import Address
from gateway.store.redis.replies import FINAL, RefusalKind, Reply, translate

Command = Sequence[str | bytes | int]


class SessionError(Exception):
    """is_final: the server, or who issued its certificate, has said no; trying again changes nothing."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class Session:
    def __init__(self, address: Address) -> None:
        self._connection = _make_connection(address)

    async def open(self) -> None:
        """Raises SessionError."""
        with _mapped_errors():
            await self._connection.connect()  # type: ignore[no-untyped-call]  # the library's own

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """The reply to each command, in one round trip. Raises SessionError."""
        await self.send(commands)
        return await self.read_all(len(commands))

    async def send(self, commands: Sequence[Command]) -> None:
        """Without waiting for the replies, which another task may be reading. Raises SessionError."""
        with _mapped_errors():
            await self._connection.send_packed_command(
                self._connection.pack_commands(commands), check_health=False
            )

    async def read_all(self, count: int) -> list[Reply]:
        """The next replies, in the order of the commands. Raises SessionError."""
        with _mapped_errors():
            return [await self._read() for _ in range(count)]

    async def read(self) -> Reply:
        """The next reply or message, whenever it comes. Raises SessionError."""
        with _mapped_errors():
            return await self._read()

    async def close(self) -> None:
        with _mapped_errors():
            await self._connection.disconnect(nowait=True)

    async def _read(self) -> Reply:
        try:
            reply: Reply = await self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return translate(error)
        return reply


def _make_connection(address: Address) -> Connection:
    """It counts no time, as the caller does, and speaks the older protocol, which needs no more than AUTH."""
    options: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": address.database,
        "username": address.user,
        "password": address.password,
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "protocol": 2,
    }
    if not address.uses_tls:
        return Connection(**options)
    return SSLConnection(
        **options,
        ssl_ca_certs=_text(address.ca_file),
        ssl_certfile=_text(address.certificate_file),
        ssl_keyfile=_text(address.key_file),
        ssl_check_hostname=True,
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@contextmanager
def _mapped_errors() -> Iterator[None]:
    try:
        yield
    # A server of another kind may send anything; uvloop raises RuntimeError for a socket that was closed.
    except (RedisError, OSError, asyncio.IncompleteReadError, ValueError, RuntimeError) as error:
        raise _translate_failure(error) from error


def _translate_failure(error: BaseException) -> SessionError:
    """In this order: what the server said · the certificate · the name · the port · all else."""
    if isinstance(error, RedisError):
        kind = translate(error).kind
        if kind is not RefusalKind.OTHER:
            return SessionError(kind.value, is_final=kind in FINAL)
        if isinstance(error, ResponseError):
            return SessionError("it refuses the database of this number", is_final=True)
    for cause in _list_causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return SessionError("its TLS certificate is not accepted", is_final=True)
        if isinstance(cause, ssl.SSLError):
            return SessionError("TLS failed")
        if isinstance(cause, socket.gaierror):
            return SessionError("its name is not found")
        if isinstance(cause, ConnectionRefusedError):
            return SessionError("connection refused")
    return SessionError("the connection was lost")


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__
