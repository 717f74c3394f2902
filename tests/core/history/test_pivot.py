from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import find_open_group, is_boundary
from gateway.core.history.pivot import Mark, find_eligible_batches, find_eligible_pivots, is_on_chain
from tests.builders.chat import JSON, bodies, converse, make_batch, make_pivot, read

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


@given(bodies(min_turns=1), st.data())
def test_an_eligible_pivot_stays_eligible_as_the_conversation_grows(body: bytes, data: st.DataObject) -> None:
    whole = read(body).conversation
    places = [at for at in range(1, find_open_group(whole) + 1) if is_boundary(whole, at)]
    if not places:
        return
    pivot = make_pivot(whole, data.draw(st.sampled_from(places)), tokens=1)
    assert find_eligible_pivots(whole, [pivot]) == [pivot]
