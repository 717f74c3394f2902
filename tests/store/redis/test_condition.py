"""Whether the server is there: one log line for each change, whoever is told, and lost records."""

import logging

import pytest

from gateway.store.redis.address import parse_address
from gateway.store.redis.condition import Condition
from gateway.store.redis.replies import RefusalKind, ServerRefusal
from gateway.store.redis.session import SessionError
from tests.store.clock import Clock

LOST = SessionError("the connection was lost")
DENIED = SessionError("it does not accept user and password", is_final=True)


class Heard:
    """What a condition has told."""

    def __init__(self, *, is_silent: bool = False) -> None:
        self.clock = Clock()
        address = parse_address("redis://me:hunter2@h:7/1")
        self.condition = Condition(address, is_silent=is_silent, clock=self.clock)
        self.events: list[str] = []
        self.condition.listen(
            up=lambda: self.events.append("up"),
            down=lambda: self.events.append("down"),
            emptied=lambda: self.events.append("emptied"),
        )

    def come_back(self, epoch: bytes | None = None, own: bytes = b"own") -> None:
        self.clock.now += 20
        assert self.condition.note_trial(epoch, own)


def test_each_change_is_one_line_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    heard = Heard()
    heard.come_back()
    heard.clock.now += 20
    for _ in range(3):
        heard.condition.note_failure(LOST)
    heard.come_back(b"own")
    heard.condition.note_failure(LOST)
    assert heard.events == ["up", "down", "up", "down"]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", _AWAY),
        ("INFO", "store redis://h:7/1 is back after 20.0 s"),
        ("WARNING", _AWAY),
    ]


_AWAY = "store redis://h:7/1 is away (the connection was lost): state is in memory until it is back"


def test_a_server_that_was_never_there_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    for _ in range(3):
        heard.condition.note_failure(LOST)
    assert [record.getMessage() for record in caplog.records] == [_AWAY] and heard.events == []


def test_a_refusal_is_an_error_even_while_the_server_was_away(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    for error in (LOST, DENIED, LOST, DENIED):
        heard.condition.note_failure(error)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert "hunter2" not in caplog.text


def test_a_silent_one_tells_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard(is_silent=True)
    heard.come_back()
    heard.condition.note_failure(LOST)
    assert heard.events == ["up", "down"] and caplog.records == []


def test_another_epoch_or_none_means_that_records_are_lost() -> None:
    heard = Heard()
    heard.come_back(b"first")
    heard.condition.note_epoch(b"first", b"x")
    assert heard.events == ["up"]
    heard.condition.note_epoch(None, b"second")
    heard.condition.note_epoch(b"second", b"x")
    heard.condition.note_epoch(b"third", b"x")
    assert heard.events == ["up", "emptied", "emptied"]


def test_a_refused_check_says_nothing_about_the_records() -> None:
    heard = Heard()
    heard.come_back(b"first")
    heard.condition.note_epoch(ServerRefusal(RefusalKind.FULL), b"x")
    heard.condition.note_epoch(b"first", b"x")
    assert heard.events == ["up"]


def test_an_end_is_told_once() -> None:
    heard = Heard()
    heard.come_back()
    heard.condition.end()
    heard.condition.end()
    assert heard.events == ["up", "down"]
