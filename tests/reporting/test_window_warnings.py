import logging
from dataclasses import replace

import pytest

from gateway.core.limits.small_windows import SmallWindow
from gateway.reporting.window_warnings import WindowWarnings
from tests.builders.chat import make_plan, make_turn, read, render

_TURN = make_turn(read(render([{"role": "user", "content": "Go on."}])))
_SMALL = SmallWindow(window=24_000, floor=8_000, turn=1_920, turns=3, wanted_turns=6, sufficient=30_000)
_FITS = make_plan()
_TOO_SMALL = replace(_FITS, small_window=_SMALL)


def test_a_small_window_is_in_every_plan_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    warnings = WindowWarnings()
    with caplog.at_level(logging.WARNING):
        plans = [
            warnings.note(_TURN, _TOO_SMALL),
            warnings.recall(_TURN, _FITS),
            warnings.note(_TURN, replace(_FITS, small_window=replace(_SMALL, turn=2_000))),
        ]
    assert [plan.warning for plan in plans[:2]] == [str(_SMALL)] * 2
    assert "a turn adds 2000" in (plans[2].warning or "")
    assert [record.getMessage() for record in caplog.records] == [f"conversation=c: {_SMALL}"]


def test_a_window_that_is_large_enough_again_is_not_warned_of_nor_logged_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = WindowWarnings()
    with caplog.at_level(logging.WARNING):
        warnings.note(_TURN, _TOO_SMALL)
        plans = [warnings.note(_TURN, _FITS), warnings.recall(_TURN, _FITS)]
        again = warnings.note(_TURN, _TOO_SMALL)
    assert [plan.warning for plan in plans] == [None, None]
    assert again.warning == str(_SMALL)
    assert len(caplog.records) == 1


def test_other_conversations_are_not_warned() -> None:
    warnings = WindowWarnings()
    warnings.note(_TURN, _TOO_SMALL)
    other = make_turn(_TURN.received, conversation_id="d")
    assert warnings.recall(other, _FITS) is _FITS
    assert warnings.note(other, _FITS) is _FITS


def test_what_does_not_fit_at_all_is_more_urgent() -> None:
    warnings = WindowWarnings()
    urgent = replace(_TOO_SMALL, warning="about 30000 of 24000 tokens")
    assert warnings.note(_TURN, urgent).warning == "about 30000 of 24000 tokens"
    assert warnings.recall(_TURN, _FITS).warning == str(_SMALL)


def test_a_client_is_logged_once_for_all_its_conversations(caplog: pytest.LogCaptureFixture) -> None:
    warnings = WindowWarnings()
    with caplog.at_level(logging.WARNING):
        plans = [
            warnings.note(make_turn(_TURN.received, conversation_id=name, scope=scope), _TOO_SMALL)
            for name, scope in (("a", "one"), ("b", "one"), ("c", "other"))
        ]
    assert [plan.warning for plan in plans] == [str(_SMALL)] * 3
    assert [record.getMessage()[:14] for record in caplog.records] == ["conversation=a", "conversation=c"]


def test_the_log_of_one_tenant_says_nothing_about_another(caplog: pytest.LogCaptureFixture) -> None:
    warnings = WindowWarnings()
    other = make_turn(read(render([{"role": "user", "content": "Go on."}]), "other"), conversation_id="d")
    with caplog.at_level(logging.WARNING):
        warnings.note(_TURN, _TOO_SMALL)
        warnings.note(other, _TOO_SMALL)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("purpose", ["summary", "title"])
def test_side_calls_are_not_warned_of(purpose: str, caplog: pytest.LogCaptureFixture) -> None:
    warnings = WindowWarnings()
    assert warnings.note(make_turn(_TURN.received, purpose=purpose), _TOO_SMALL).warning is None
    assert caplog.records == []


def test_memory_is_bounded() -> None:
    warnings = WindowWarnings()
    for number in range(10_000):
        warnings.note(make_turn(_TURN.received, conversation_id=f"c{number}"), _TOO_SMALL)
    assert warnings.recall(make_turn(_TURN.received, conversation_id="c0"), _FITS).warning is None
    assert warnings.recall(make_turn(_TURN.received, conversation_id="c9999"), _FITS).warning is not None
