"""Every strategy leaves what a strict upstream accepts, and drops what it says."""

from dataclasses import replace

import pytest

from tests.toy.agent import PLAIN, Message, Style, Trim, make_session
from tests.toy.trimming import (
    drop_oldest_results,
    keep_first_and_newest,
    keep_head_and_tail,
    keep_newest,
    keep_tokens,
    shorten_then_drop,
    with_ages,
    with_clock,
)
from tests.toy.validity import find_violation

_STRATEGIES: dict[str, tuple[Trim, Style]] = {
    "newest": (keep_newest(9), "talk"),
    "newest with calls": (keep_newest(40), "many_users"),
    "first and newest": (keep_first_and_newest(9), "one_user"),
    "head and tail": (keep_head_and_tail(3, 9), "many_users"),
    "tokens": (keep_tokens(4_000), "many_users"),
    "oldest results": (drop_oldest_results(4_000, keeps_texts=False), "one_user"),
    "oldest results, texts stay": (drop_oldest_results(4_000, keeps_texts=True), "one_user"),
    "shorten then drop": (shorten_then_drop(4_000), "many_users"),
    "ages": (with_ages, "many_users"),
    "clock": (with_clock(), "one_user"),
    "clock, newest": (with_clock(keep_first_and_newest(9)), "one_user"),
}


@pytest.mark.parametrize(("trim", "style"), _STRATEGIES.values(), ids=list(_STRATEGIES))
def test_every_request_is_valid_and_shows_the_newest_message(trim: Trim, style: Style) -> None:
    whole = make_session(40, 3, style, 300)
    session = replace(whole, trim=trim)
    for turn in range(len(session)):
        assert find_violation(session.envelope(turn, PLAIN)) is None
        newest = str(whole.said(turn)[-1]["content"])
        assert str(session.said(turn)[-1]["content"]).endswith(newest)
    assert session.said(39) != whole.said(39)


def make_history(count: int) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": f"{at}"} for at in range(count)]


def contents(messages: list[Message]) -> list[object]:
    return [message["content"] for message in messages]


def test_short_histories_stay_whole() -> None:
    history = make_history(5)
    for trim in (keep_newest(5), keep_first_and_newest(4), keep_head_and_tail(2, 3), keep_tokens(500)):
        assert trim(history) == history
    assert drop_oldest_results(500, keeps_texts=True)(history) == shorten_then_drop(500)(history) == history


def test_what_each_strategy_keeps() -> None:
    history = make_history(9)
    assert contents(keep_newest(2)(history)) == ["7", "8"]
    assert contents(keep_first_and_newest(2)(history)) == ["0", "7", "8"]
    assert contents(keep_head_and_tail(1, 2)(history)) == ["0", "Skipped 6 messages.", "7", "8"]
    # A user's message has eight tokens, the assistant's nine.
    assert contents(keep_tokens(24)(history)) == ["8"]
    assert contents(keep_tokens(25)(history)) == ["6", "7", "8"]
    assert contents(keep_tokens(34)(history)) == ["6", "7", "8"]


@pytest.mark.parametrize("keeps_texts", [True, False])
def test_results_leave_with_their_calls_and_what_was_said_may_stay(keeps_texts: bool) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said: Message = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    silent: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    result: Message = {"role": "tool", "tool_call_id": "1", "content": "x" * 400}
    task: Message = {"role": "user", "content": "Go."}
    trim = drop_oldest_results(200, keeps_texts=keeps_texts)
    text: list[Message] = [{"role": "assistant", "content": "I look."}] if keeps_texts else []
    kept = trim([task, said, result, silent, result, said, result])
    assert kept == [task, *text, said, result]


def test_long_texts_are_cut_before_anything_is_dropped() -> None:
    long = "\n".join(f"line {number}" for number in range(100))
    history: list[Message] = [{"role": "user", "content": "Go."}, {"role": "user", "content": long}]
    shown = shorten_then_drop(100)(history)
    assert len(shown) == 2 and "[...]" in str(shown[1]["content"])
    assert str(shown[1]["content"]).endswith("line 99")
    assert len(shorten_then_drop(40)(history)) == 1


def test_ages_change_every_message() -> None:
    first, second = with_ages(make_history(3)), with_ages(make_history(5))
    assert contents(first) == ["(3 messages ago) 0", "(2 messages ago) 1", "(1 messages ago) 2"]
    assert not set(contents(first)) & set(contents(second[:3]))


def test_the_clock_moves_on_with_every_turn() -> None:
    trim = with_clock()
    first, second = trim(make_history(3)), trim(make_history(5))
    assert first[0] != second[0] and first[1:] == second[1:3]
