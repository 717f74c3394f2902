"""What the supervisor and a worker say to each other."""

from pathlib import Path
from typing import Final

import msgspec

from gateway.settings import SettingsFile


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
    """The worker takes no new connections any more, and ends when its requests have."""


class FailedReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker cannot serve. reason: for the operator. status: that `refold serve` would exit with."""

    reason: str
    status: int


Order = StartOrder | ReloadOrder | DrainOrder | HurryOrder
Report = ReadyReport | AliveReport | RetiringReport | FailedReport

_encoder: Final = msgspec.msgpack.Encoder()
_orders: Final = msgspec.msgpack.Decoder(Order)
_reports: Final = msgspec.msgpack.Decoder(Report)


def pack_settings(file: SettingsFile | None) -> SettingsText | None:
    return None if file is None else SettingsText(text=file.text, references=dict(file.references))


def unpack_settings(settings: SettingsText | None, path: Path) -> SettingsFile | None:
    """path: that the text was read from. Paths in it are relative to its folder, and errors name it."""
    return None if settings is None else SettingsFile(path, settings.text, settings.references)


def render(message: Order | Report) -> bytes:
    return _encoder.encode(message)


def parse_order(data: bytes) -> Order:
    """Raises msgspec.MsgspecError for what no supervisor sends."""
    order: Order = _orders.decode(data)
    return order


def parse_report(data: bytes) -> Report:
    """Raises msgspec.MsgspecError for what no worker sends."""
    report: Report = _reports.decode(data)
    return report
