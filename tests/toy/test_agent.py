"""Scripted and recorded sessions: histories only grow, and facts are at their turns."""

import json
from itertools import pairwise

import pytest

from tests.shared_data import requires_shared
from tests.toy.agent import Shape, Style, find_tokens, make_session
from tests.toy.counting import TokenCounter
from tests.toy.summarising import find_facts
from tests.toy.transcripts import Limits, find_large, load_transcript, make_session_of
from tests.toy.validity import find_violation

COUNTER = TokenCounter()


@pytest.mark.parametrize("shape", [Shape(), Shape(indent=2), Shape(ascii=True, separators=(", ", ": "))])
def test_bytes_of_earlier_messages_never_change(shape: Shape) -> None:
    session = make_session(20, 1, "many_users")
    bodies = [session.request(turn, shape) for turn in range(20)]
    for before, after in pairwise(bodies):
        end_of_messages = before.index(b'"tools"') - 12
        assert after.startswith(before[: end_of_messages - len(shape.separators[0])])


@pytest.mark.parametrize("style", ["one_user", "many_users"])
@pytest.mark.parametrize("turn_tokens", [400, 750, 2_000])
def test_a_turn_adds_about_the_wished_tokens(style: Style, turn_tokens: int) -> None:
    session = make_session(60, 2, style, turn_tokens)
    added = COUNTER.messages(session.messages(60)) - COUNTER.messages(session.messages(0))
    assert 0.85 <= added / 60 / turn_tokens <= 1.15


@pytest.mark.parametrize("style", ["one_user", "many_users"])
def test_facts_are_in_the_turns_that_name_them(style: Style) -> None:
    session = make_session(40, 3, style)
    for fact in session.facts:
        shown = find_facts({"messages": session.messages(fact.turn + 1)})
        hidden = find_facts({"messages": session.messages(max(0, fact.turn))})
        assert fact.token in shown
        assert fact.turn < 0 or fact.token not in hidden
    assert {fact.kind for fact in session.facts} == {"user", "assistant", "tool"}
    assert len(find_tokens(session.facts, "user", "assistant", "tool")) == len(set(session.facts))


def test_call_ids_are_unique_and_calls_parallel() -> None:
    session = make_session(60, 4)
    calls = [len(session.reply(turn).tool_calls) for turn in range(60)]
    ids = [call.id for turn in range(60) for call in session.reply(turn).tool_calls]
    assert set(calls) == {1, 2, 3}
    assert len(set(ids)) == len(ids)


def test_the_same_seed_gives_the_same_session() -> None:
    assert make_session(10, 7).request(9) == make_session(10, 7).request(9) != make_session(10, 8).request(9)


def test_the_envelope_holds_the_fields_of_the_shape() -> None:
    shape = Shape(max_tokens=9, max_tokens_name="max_completion_tokens", stream=True, include_usage=True)
    body = json.loads(make_session(2, 1).request(1, shape))
    assert (body["max_completion_tokens"], body["stream"]) == (9, True)
    assert body["stream_options"] == {"include_usage": True}


def test_consecutive_assistant_messages_are_one_turn() -> None:
    said = [
        {"role": role, "content": role} for role in ("user", "assistant", "assistant", "user", "assistant")
    ]
    session = make_session_of("x", said, ())
    assert [len(session.messages(turn)) for turn in range(len(session))] == [2, 5]


@requires_shared
def test_large_transcripts_are_valid_at_every_length() -> None:
    files = find_large()
    assert len(files) == 19
    for file in files:
        session = load_transcript(file, Limits(messages=120, text_chars=20_000))
        steps = {*range(0, len(session), 10), len(session) - 1}
        assert {find_violation(json.loads(session.request(turn))) for turn in steps} == {None}, file
