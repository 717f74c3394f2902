"""What the supervisor and a worker say to each other: one message in JSON on each line of their connection.

On that connection each learns that the other has ended.
"""

import asyncio
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from gateway.settings import SettingsFile

# A worker says so often that its event loop runs.
BEAT_SECONDS: Final = 5.0
# Of a line. Far above what is ever sent: the largest is a settings file.
MOST_BYTES: Final = 1 << 30


class SettingsText(msgspec.Struct, frozen=True, kw_only=True):
    """A settings file as the supervisor has read it. references: see `SettingsFile`."""

    text: str
    references: dict[str, str]


class StartOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker. Numbers stand for descriptors that it has inherited."""

    # The file as it was when the gateway started; None without one.
    settings: SettingsText | None
    # As it was at the last reload; None if there was none.
    reloaded: SettingsText | None
    listening: list[int]
    admin_path: str
    # True for one worker only: the upstreams are asked once.
    checks_upstreams: bool


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """To a worker that serves. reload: use these settings, which the supervisor found valid. drain: finish
    open requests, then end. hurry: end now.
    """

    kind: Literal["reload", "drain", "hurry"]
    settings: SettingsText | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Of a worker. ready: it serves. alive: its event loop runs. retiring: it is about to leave its port, and
    ends when its requests have. failed: it cannot serve.

    windows: how many models have a window in the bundled table. reason: for the operator. status: that
    `refold serve` would exit with.
    """

    kind: Literal["ready", "alive", "retiring", "failed"]
    windows: int = 0
    reason: str = ""
    status: int = 0


_Message = TypeVar("_Message", StartOrder, Order, Report)


def send(writer: asyncio.StreamWriter, message: StartOrder | Order | Report) -> None:
    """Does nothing if the other side has gone."""
    if not writer.is_closing():
        writer.write(msgspec.json.encode(message) + b"\n")


async def receive(reader: asyncio.StreamReader, kind: type[_Message]) -> _Message | None:
    """The next message of the other side; None once it has gone.

    Raises msgspec.MsgspecError for what it does not send.
    """
    try:
        line = await reader.readline()
    except ConnectionError:
        return None
    return msgspec.json.decode(line, type=kind) if line.endswith(b"\n") else None


def pack_settings(file: SettingsFile | None) -> SettingsText | None:
    return None if file is None else SettingsText(text=file.text, references=dict(file.references))


def unpack_settings(settings: SettingsText | None, path: Path) -> SettingsFile | None:
    """path: that the text was read from. Paths in it are relative to its folder, and errors name it."""
    return None if settings is None else SettingsFile(path, settings.text, settings.references)
