"""How many summaries a client gets that continues none of its conversations."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.compaction.summary_limiter import SummaryLimiter
from gateway.conversations.recognizer import Received
from gateway.conversations.turn import Turn
from gateway.core.policy import Policy, Summary
from gateway.tenants import Tenant
from tests.builders.chat import make_turn, read, render
from tests.builders.compaction import head_of, talk

_MOST = Summary().max_calls


def receive(number: int, turns: int = 2) -> Received:
    """A history whose first message is like no other's."""
    return read(render([{"role": "user", "content": f"Part {number}."}, *talk(turns, 40)[1:]]))


def unknown(number: int, **fields: Any) -> Turn:
    return make_turn(receive(number), is_unrecognized=True, **fields)


_UNKNOWN = [unknown(number) for number in range(3)]


def continued(number: int, turns: int, **fields: Any) -> Turn:
    """The turn after one with two turns less."""
    return make_turn(receive(number, turns), head=head_of(receive(number, turns - 1)), **fields)


def answer(limiter: SummaryLimiter, turn: Turn) -> None:
    limiter.note_response(turn, needs_compaction=True)


def ask(limiter: SummaryLimiter, turn: Turn) -> int:
    """The calls that the turn may make before it is answered."""
    calls = limiter.count_calls(turn)
    answer(limiter, turn)
    return calls


def test_two_unknown_histories_get_their_summaries_and_then_every_tenth_gets_one() -> None:
    limiter = SummaryLimiter()
    calls = [ask(limiter, unknown(number)) for number in range(32)]
    assert calls[:2] == [_MOST, _MOST]
    assert {number: calls[number] for number in range(2, 32) if calls[number]} == {10: 1, 20: 1, 30: 1}


def test_histories_that_arrive_before_one_is_answered_all_get_theirs() -> None:
    limiter = SummaryLimiter()
    turns = [unknown(number) for number in range(20)]
    assert {limiter.count_calls(turn) for turn in turns} == {_MOST}


def test_a_conversation_that_is_continued_three_times_ends_the_limit() -> None:
    limiter = SummaryLimiter()
    for number in range(5):
        answer(limiter, unknown(number))
    answer(limiter, continued(4, 3))
    answer(limiter, continued(4, 4))
    assert limiter.count_calls(unknown(9)) == 0
    answer(limiter, continued(4, 5))
    assert [ask(limiter, unknown(number)) for number in range(9, 12)] == [_MOST, _MOST, 0]


def test_other_conversations_of_the_tenant_do_not_end_the_limit() -> None:
    limiter = SummaryLimiter()
    for number in range(5):
        answer(limiter, unknown(number))
    for turns in range(3, 20):
        answer(limiter, continued(7, turns))
    assert limiter.count_calls(unknown(9)) == 0


def test_a_known_history_is_never_limited() -> None:
    limiter = SummaryLimiter()
    for number in range(5):
        answer(limiter, unknown(number))
    turn = structs.replace(unknown(9), is_unrecognized=False)
    assert limiter.count_calls(turn) == _MOST and not limiter.is_limited(turn)


def test_requests_that_need_no_compaction_are_not_counted() -> None:
    limiter = SummaryLimiter()
    for number in range(5):
        limiter.note_response(unknown(number), needs_compaction=False)
    assert limiter.count_calls(unknown(9)) == _MOST


def test_a_request_is_not_limited_by_its_own_response_nor_by_that_of_its_retry() -> None:
    limiter = SummaryLimiter()
    first, second = unknown(0), unknown(1)
    answer(limiter, first)
    answer(limiter, second)
    answer(limiter, second)
    assert not limiter.is_limited(second) and limiter.count_calls(second) == _MOST
    assert limiter.is_limited(unknown(2))


@pytest.mark.parametrize(
    "fields",
    [
        {"tenant": Tenant("other", None, "default")},
        {"session": "ses_2"},
        {"upstream": replace(unknown(0).upstream, name="other")},
    ],
    ids=["tenant", "session", "upstream"],
)
def test_others_are_not_limited(fields: dict[str, Any]) -> None:
    limiter = SummaryLimiter()
    for number in range(5):
        answer(limiter, unknown(number))
    assert limiter.count_calls(unknown(9, **fields)) == _MOST


def test_a_changed_leading_block_is_the_same_client() -> None:
    """It may hold a clock. The scope is another one then."""
    limiter = SummaryLimiter()
    for number in range(5):
        answer(limiter, unknown(number, scope=f"scope {number}"))
    assert limiter.count_calls(unknown(9, scope="scope 9")) == 0


def test_what_makes_no_call_is_not_limited() -> None:
    limiter, policy = SummaryLimiter(), Policy(summary=Summary(method="drop"))
    for number in range(5):
        answer(limiter, unknown(number, policy=policy))
    turn = unknown(9, policy=policy)
    assert not limiter.is_limited(turn) and limiter.count_calls(turn) == _MOST


def test_one_warning_names_the_settings_of_the_clients(caplog: pytest.LogCaptureFixture) -> None:
    limiter = SummaryLimiter()
    with caplog.at_level(logging.WARNING, "gateway.compactor"):
        for number in range(2):
            answer(limiter, unknown(number))
        assert caplog.records == []
        for number in range(2, 9):
            answer(limiter, unknown(number))
    (record,) = caplog.records
    for setting in ("GPTME_CONTEXT_LENGTH", "trim_messages", "BufferedChatCompletionContext"):
        assert setting in record.getMessage()
    assert "Part" not in record.getMessage()


def test_many_clients_take_bounded_memory() -> None:
    limiter = SummaryLimiter()
    first, last = (unknown(9, session=session * 1_000) for session in "ab")
    for session in ("a" * 1_000, *map(str, range(5_000)), "b" * 1_000):
        for number in range(3):
            answer(limiter, structs.replace(_UNKNOWN[number], session=session))
    assert limiter.size_bytes <= 4 << 20
    assert (limiter.count_calls(first), limiter.count_calls(last)) == (_MOST, 0)
