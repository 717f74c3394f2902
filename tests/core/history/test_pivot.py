from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import find_open_group, is_boundary
from gateway.core.history.pivot import (
    Mark,
    find_eligible_batches,
    find_eligible_pivots,
    is_on_chain,
    list_turns,
    place_pivot,
)
from tests.builders.chat import JSON, bodies, converse, make_batch, make_pivot, read
from tests.builders.trimmed import continue_trimmed, say

_TALK: list[JSON] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "look"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "d"},
]
_CONVERSATION = converse(_TALK)


def test_a_pivot_is_eligible_up_to_the_open_group() -> None:
    pivots = [make_pivot(_CONVERSATION, covers) for covers in (5, 3, 2)]
    assert [pivot.covers for pivot in find_eligible_pivots(_CONVERSATION, pivots)] == [2, 3]


def test_a_pivot_of_another_prefix_is_not_eligible() -> None:
    edited = converse([{"role": "user", "content": "A"}, *_TALK[1:]])
    assert find_eligible_pivots(edited, [make_pivot(_CONVERSATION, 2)]) == []


def test_a_key_matches_at_its_own_length_only() -> None:
    pivot = make_pivot(_CONVERSATION, 2)
    assert is_on_chain(_CONVERSATION, pivot.key, 2)
    assert not is_on_chain(_CONVERSATION, pivot.key, 1)
    assert not is_on_chain(_CONVERSATION, pivot.key, 99)
    assert find_eligible_pivots(_CONVERSATION, [replace(pivot, covers=1), replace(pivot, covers=99)]) == []


def test_eligible_batches_are_on_the_chain_and_in_the_order_of_decision() -> None:
    late, early = make_batch(_CONVERSATION, [Mark(4)]), make_batch(_CONVERSATION, [Mark(0)], length=3)
    assert find_eligible_batches(_CONVERSATION, [late, early]) == [early, late]
    assert find_eligible_batches(converse(_TALK[:3]), [late, early]) == [early]


def test_framing_and_recalled_pieces_stand_around_the_summary() -> None:
    bare = make_pivot(_CONVERSATION, 2, summary="S.", question=None)
    whole = replace(bare, framing="F.", recalled="R.")
    assert list_turns(bare, "user") == [("assistant", "S.")]
    assert list_turns(whole, "user") == [("assistant", "F.\n\nS.\n\nR.")]
    assert replace(whole, recalled="").text == "F.\n\nS." and replace(whole, framing="").text == "S.\n\nR."


@given(bodies(min_turns=1), st.data())
def test_an_eligible_pivot_stays_eligible_as_the_conversation_grows(body: bytes, data: st.DataObject) -> None:
    whole = read(body).conversation
    places = [at for at in range(1, find_open_group(whole) + 1) if is_boundary(whole, at)]
    if not places:
        return
    pivot = make_pivot(whole, data.draw(st.sampled_from(places)), tokens=1)
    assert find_eligible_pivots(whole, [pivot]) == [pivot]


def test_a_dropped_opening_is_sent_as_the_question_before_the_summary() -> None:
    whole, trimmed = converse(say(6)), continue_trimmed(say(5), say(6)[10:]).conversation
    pivot = make_pivot(whole, 12, opening="Task t", opening_chars=500)
    assert place_pivot(pivot, whole) is pivot
    [placed] = find_eligible_pivots(trimmed, [pivot])
    assert (placed.opening_end, placed.opening_chars, placed.question) == (0, None, "Task t")
    assert placed == replace(pivot, opening_end=0, opening_chars=None, question="Task t")
    [unknown] = find_eligible_pivots(trimmed, [replace(pivot, opening=None)])
    assert unknown.question and "no longer" in unknown.question


def test_an_opening_that_is_still_sent_stays_before_the_summary() -> None:
    whole = say(6)
    trimmed = continue_trimmed(say(5), [whole[0], *whole[10:]]).conversation
    pivot = make_pivot(converse(whole), 12, opening="Task t")
    assert find_eligible_pivots(trimmed, [pivot]) == [pivot]


def test_a_pivot_that_ends_in_what_is_gone_is_not_eligible() -> None:
    trimmed = continue_trimmed(say(5), say(6)[10:]).conversation
    pivots = [make_pivot(converse(say(6)), covers) for covers in (8, 9, 10, 12)]
    assert [pivot.covers for pivot in find_eligible_pivots(trimmed, pivots)] == [10, 12]


def test_marks_of_messages_that_are_gone_are_left_out() -> None:
    whole, trimmed = converse(say(6)), continue_trimmed(say(5), say(6)[10:]).conversation
    batch = make_batch(whole, [Mark(2), Mark(6), Mark(14)], length=16)
    assert find_eligible_batches(whole, [batch]) == [batch]
    assert [mark.position for mark in find_eligible_batches(trimmed, [batch])[0].marks] == [14]
