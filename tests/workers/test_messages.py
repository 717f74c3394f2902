"""Orders and reports survive the way from one process to the other."""

from pathlib import Path

import msgspec
import pytest

from gateway.settings import SettingsFile
from gateway.workers.messages import (
    AliveReport,
    DrainOrder,
    FailedReport,
    HurryOrder,
    Order,
    ReadyReport,
    ReloadOrder,
    Report,
    SettingsText,
    pack_settings,
    parse_order,
    parse_report,
    render,
    unpack_settings,
)
from tests.workers.starting import ORDER

FILE = SettingsFile(Path("/etc/gateway.yaml"), "store: x", {"key": "sk-1"})
SETTINGS = SettingsText(text="store: x", references={"key": "sk-1"})


def test_what_is_rendered_is_parsed() -> None:
    orders: list[Order] = [ORDER, ReloadOrder(settings=SETTINGS), DrainOrder(), HurryOrder()]
    assert [parse_order(render(order)) for order in orders] == orders
    reports: list[Report] = [ReadyReport(windows=3), AliveReport(), FailedReport(reason="why", status=2)]
    assert [parse_report(render(report)) for report in reports] == reports


def test_settings_keep_the_texts_of_the_files_that_they_name() -> None:
    assert pack_settings(FILE) == SETTINGS
    assert unpack_settings(SETTINGS, FILE.path) == FILE
    assert pack_settings(None) is None
    assert unpack_settings(None, FILE.path) is None


def test_a_report_is_no_order() -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse_order(render(ReadyReport(windows=3)))
