import pytest

from gateway.core.sizing.average_turn import average_turn
from tests.builders.chat import JSON, converse

_USER: JSON = {"role": "user", "content": "Go on."}
_CALL: JSON = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look"}}]}
_RESULT: JSON = {"role": "tool", "tool_call_id": "c", "content": "x"}


def test_a_conversation_without_a_reply_has_no_turns() -> None:
    assert average_turn(converse([_USER, _USER]), [500.0, 500.0]) == 0


def test_the_opening_does_not_count() -> None:
    conversation = converse([_USER, *[_CALL, _RESULT] * 8])
    assert average_turn(conversation, [9_000.0, *[100.0, 300.0] * 8]) == 400


def test_what_the_client_adds_belongs_to_the_turn_before() -> None:
    conversation = converse([_USER, *[_CALL, _RESULT, _USER, _USER] * 6])
    assert average_turn(conversation, [0.0, *[100.0, 300.0, 10.0, 20.0] * 6]) == 430


@pytest.mark.parametrize(("turns", "average"), [(1, 100), (3, 300), (6, 600), (12, 600)])
def test_turns_that_are_missing_of_six_count_as_empty(turns: int, average: float) -> None:
    conversation = converse([_USER, *[_CALL, _RESULT] * turns])
    assert average_turn(conversation, [0.0, *[100.0, 500.0] * turns]) == average


def test_one_large_output_does_not_double_the_average() -> None:
    conversation = converse([_USER, *[_CALL, _RESULT] * 40])
    sizes = [0.0, *[100.0, 900.0] * 39, 100.0, 20_900.0]
    assert average_turn(conversation, sizes) == pytest.approx(1_000 + 20_000 / 24)


def test_only_the_newest_turns_count() -> None:
    conversation = converse([_USER, *[_CALL, _RESULT] * 100])
    assert average_turn(conversation, [0.0, *[9_000.0, 9_000.0] * 76, *[100.0, 400.0] * 24]) == 500
