"""What the supervisor and a worker say to each other, each message preceded by its length.

On their connection each learns that the other has ended.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

import msgspec

from gateway.settings import SettingsFile

# A worker says so often that its event loop runs.
BEAT_SECONDS: Final = 5.0


class SettingsText(msgspec.Struct, frozen=True, kw_only=True):
    """A settings file as the supervisor has read it. references: see `SettingsFile`."""

    text: str
    references: dict[str, str]


class StartOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message to a worker. Numbers stand for descriptors that it has inherited."""

    # The file as it was when the gateway started; None without one.
    settings: SettingsText | None
    # As it was at the last reload; None if there was none.
    reloaded: SettingsText | None
    listening: tuple[int, ...]
    admin_path: str
    # True for one worker only: the upstreams are asked once.
    checks_upstreams: bool


class ReloadOrder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The settings have changed, and the supervisor found them valid."""

    settings: SettingsText


class DrainOrder(msgspec.Struct, frozen=True, tag=True):
    """Finish open requests, then end."""


class HurryOrder(msgspec.Struct, frozen=True, tag=True):
    """End now."""


class ReadyReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker serves. windows: how many models have a window in the bundled table."""

    windows: int


class AliveReport(msgspec.Struct, frozen=True, tag=True):
    """The worker's event loop runs."""


class RetiringReport(msgspec.Struct, frozen=True, tag=True):
    """The worker is about to leave its port, and ends when its requests have."""


class FailedReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker cannot serve. reason: for the operator. status: that `refold serve` would exit with."""

    reason: str
    status: int


Order = StartOrder | ReloadOrder | DrainOrder | HurryOrder
Report = ReadyReport | AliveReport | RetiringReport | FailedReport

_encoder: Final = msgspec.msgpack.Encoder()
ORDERS: Final["msgspec.msgpack.Decoder[Order]"] = msgspec.msgpack.Decoder(Order)
REPORTS: Final["msgspec.msgpack.Decoder[Report]"] = msgspec.msgpack.Decoder(Report)
# What the other side sends.
_Received = TypeVar("_Received")


def pack_settings(file: SettingsFile | None) -> SettingsText | None:
    return None if file is None else SettingsText(text=file.text, references=dict(file.references))


def unpack_settings(settings: SettingsText | None, path: Path) -> SettingsFile | None:
    """path: that the text was read from. Paths in it are relative to its folder, and errors name it."""
    return None if settings is None else SettingsFile(path, settings.text, settings.references)


_LENGTH: Final = struct.Struct(">I")
# Far above what is ever sent: the largest is a settings file.
_MAX_BYTES: Final = 1 << 30

TakeMessage = Callable[[bytes], None]


class _MessageLine(asyncio.Protocol):
    """take: called for each message. on_lost: called once, when the other side has gone."""

    def __init__(self, take: TakeMessage, on_lost: Callable[[], None]) -> None:
        self._take = take
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self.is_lost = False

    def send(self, message: bytes) -> None:
        """Does nothing if the other side has gone."""
        if self._transport is not None and not self.is_lost:
            self._transport.writelines((_LENGTH.pack(len(message)), message))

    def close(self) -> None:
        """What is not sent yet is still sent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have this interface without inheriting from it.
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: BaseException | None) -> None:
        self.is_lost = True
        self._received.clear()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        self._received += data
        for message in self._split():
            self._take(message)

    def _split(self) -> Iterator[bytes]:
        """The whole messages that have come. A rest stays."""
        start, received = 0, self._received
        messages = []
        while len(received) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(received, start)
            if size > _MAX_BYTES and self._transport is not None:
                self._transport.abort()
                break
            end = start + _LENGTH.size + size
            if len(received) < end:
                break
            messages.append(bytes(memoryview(received)[start + _LENGTH.size : end]))
            start = end
        del received[:start]
        yield from messages


class Link(Generic[_Received]):
    """One side of the connection. decoder: of what the other side sends."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[_Received]") -> None:
        self._decoder = decoder
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._line: _MessageLine | None = None

    async def open(self, connected: socket.socket) -> Self:
        _, self._line = await asyncio.get_running_loop().create_unix_connection(
            lambda: _MessageLine(self._received.put_nowait, self._end), sock=connected
        )
        return self

    def send(self, message: Order | Report) -> None:
        if self._line is not None:
            self._line.send(_encoder.encode(message))

    async def receive(self) -> _Received | None:
        """The next message of the other side; None once it has gone.

        Raises msgspec.MsgspecError for what it does not send.
        """
        message = await self._received.get()
        if message is None:
            self._end()
            return None
        return self._decoder.decode(message)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def _end(self) -> None:
        self._received.put_nowait(None)
