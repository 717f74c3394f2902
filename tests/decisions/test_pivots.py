"""What is kept of a conversation and when it applies again: pivots, batches, recalls, heads, versions."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import find_open_group, is_boundary
from gateway.core.history.head import count_dropped, fingerprint_scope, is_comparable, smooth_growth
from gateway.core.history.pivot import (
    Mark,
    find_eligible_batches,
    find_eligible_pivots,
    is_on_chain,
    list_turns,
    place_pivot,
)
from gateway.core.history.view import Size, View, make_view, measure
from tests.decisions.builders import (
    JSON,
    bodies,
    continue_trimmed,
    converse,
    make_batch,
    make_head,
    make_pivot,
    make_recall,
    pivots,
    read,
    say,
    talk,
)

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
    whole, trimmed = converse(say(6)), continue_trimmed(say(5), say(6)[10:])
    pivot = make_pivot(whole, 12, opening="Task t")
    assert place_pivot(pivot, whole) is pivot
    [placed] = find_eligible_pivots(trimmed, [pivot])
    assert (placed.opening_end, placed.question) == (0, "Task t")
    assert placed == replace(pivot, opening_end=0, question="Task t")
    [unknown] = find_eligible_pivots(trimmed, [replace(pivot, opening=None)])
    assert unknown.question and "no longer" in unknown.question


def test_an_opening_that_is_still_sent_stays_before_the_summary() -> None:
    whole = say(6)
    trimmed = continue_trimmed(say(5), [whole[0], *whole[10:]])
    pivot = make_pivot(converse(whole), 12, opening="Task t")
    assert find_eligible_pivots(trimmed, [pivot]) == [pivot]


def test_a_pivot_that_ends_in_what_is_gone_is_not_eligible() -> None:
    trimmed = continue_trimmed(say(5), say(6)[10:])
    pivots = [make_pivot(converse(say(6)), covers) for covers in (8, 9, 10, 12)]
    assert [pivot.covers for pivot in find_eligible_pivots(trimmed, pivots)] == [10, 12]


def test_marks_of_messages_that_are_gone_are_left_out() -> None:
    whole, trimmed = converse(say(6)), continue_trimmed(say(5), say(6)[10:])
    batch = make_batch(whole, [Mark(2), Mark(6), Mark(14)], length=16)
    assert find_eligible_batches(whole, [batch]) == [batch]
    assert [mark.position for mark in find_eligible_batches(trimmed, [batch])[0].marks] == [14]


_SIZES = [Size(1, 1), Size(20, 80), Size(300, 1_200), Size(4_000, 16_000), Size(50_000, 200_000)]


def test_a_pivot_counts_with_its_messages_and_the_opening() -> None:
    view = make_view(make_pivot(_CONVERSATION, 3, tokens=40, opening_tokens=2), ())
    assert (view.start, View(None, {}).start) == (3, 0)
    assert measure(view, _SIZES, 7, 5) == 7 + 40 + 2 + 54_000
    assert measure(view, _SIZES, 7, 2) == 7 + 40 + 2


def test_recalls_count_where_they_stand_unless_the_pivot_covers_them() -> None:
    recalls = [make_recall(_CONVERSATION, 1), make_recall(_CONVERSATION, 3), make_recall(_CONVERSATION, 3)]
    assert make_view(None, (), recalls).inserted == {1: 30, 3: 60}
    assert measure(make_view(None, (), recalls), _SIZES, 7, 2) == 28 + 30
    assert measure(make_view(None, (), recalls), _SIZES, 7, 5) == 54_328 + 90
    view = make_view(make_pivot(_CONVERSATION, 2, tokens=40, opening_tokens=2), (), recalls)
    assert view.inserted == {3: 60}
    # One at the end of what is covered stands behind the pivot.
    assert make_view(make_pivot(_CONVERSATION, 3), (), recalls).inserted == {3: 60}


def test_newer_marks_apply_and_covered_ones_are_ignored() -> None:
    batches = [make_batch(_CONVERSATION, [Mark(2), Mark(4)]), make_batch(_CONVERSATION, [Mark(4, 256)])]
    assert make_view(None, batches).marks == {2: Mark(2), 4: Mark(4, 256)}
    assert make_view(make_pivot(_CONVERSATION, 3), batches).marks == {4: Mark(4, 256)}
    assert make_view(make_pivot(_CONVERSATION, 4), batches).marks == {4: Mark(4, 256)}
    assert make_view(make_pivot(_CONVERSATION, 5), batches).marks == {}


@given(st.data())
def test_shortening_never_makes_a_conversation_larger(data: st.DataObject) -> None:
    conversation = read(data.draw(bodies(min_turns=1))).conversation
    count = len(conversation.messages)
    size = st.builds(Size, st.integers(0, 5_000), st.integers(0, 20_000))
    sizes = data.draw(st.lists(size, min_size=count, max_size=count))
    pivot = data.draw(pivots(conversation))
    limits = st.sampled_from([None, 256, 4_096])
    marks = [Mark(at, data.draw(limits)) for at in range(count) if data.draw(st.booleans())]
    plain, marked = make_view(pivot, ()), make_view(pivot, [make_batch(conversation, marks)])
    assert measure(marked, sizes, 7, count) <= measure(plain, sizes, 7, count)


_HEAD = make_head(converse(talk(0)), "s", prompt_tokens=1_000, output_tokens=100)


def test_there_is_no_growth_without_an_earlier_size() -> None:
    assert smooth_growth(None, 5_000) == 0.0
    assert smooth_growth(replace(_HEAD, prompt_tokens=0, output_tokens=0), 5_000) == 0.0


def test_every_part_of_a_scope_changes_it() -> None:
    scopes = {
        fingerprint_scope("up", "model", [b"a", b"b"], b"tools"),
        fingerprint_scope("other", "model", [b"a", b"b"], b"tools"),
        fingerprint_scope("up", "other", [b"a", b"b"], b"tools"),
        fingerprint_scope("up", "model", [b"a"], b"tools"),
        fingerprint_scope("up", "model", [], b"tools"),
        fingerprint_scope("up", "model", [b"a", b"b"], b""),
        fingerprint_scope("upm", "odel", [b"a", b"b"], b"tools"),
    }
    assert len(scopes) == 7
    assert fingerprint_scope("up", "model", [b"a"], b"x") == fingerprint_scope("up", "model", [b"a"], b"x")


def test_usage_is_comparable_if_as_much_of_the_history_was_missing() -> None:
    whole, trimmed = converse(say(6)), continue_trimmed(say(5), say(6)[10:])
    assert (count_dropped(whole, 0), count_dropped(trimmed, 0), count_dropped(trimmed, 10)) == (0, 10, 0)
    assert is_comparable(_HEAD, whole)
    assert not is_comparable(_HEAD, trimmed)
    assert is_comparable(replace(_HEAD, dropped=10), trimmed)
    assert is_comparable(replace(_HEAD, pivot="ab", covers=12), trimmed)
    assert not is_comparable(replace(_HEAD, dropped=10), whole)
