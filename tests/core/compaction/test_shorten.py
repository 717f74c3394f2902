from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.shorten import choose_opening_chars, choose_shortening
from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size, View, make_view, shown_tokens
from gateway.core.sizing.calibrated_sizes import CalibratedSizes
from gateway.core.sizing.estimate import Sizes
from tests.builders.chat import bodies, converse, make_batch, make_pivot, read

_NOTHING = View(None, {})
_TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "look"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "b"},
    {"role": "user", "content": "c"},
]
_CONVERSATION = converse(_TALK)
_SIZES = [Size(10, 40), Size(9_000, 36_000), Size(10_000, 40_000), Size(1_000, 4_000)]


def weigh(sizes: list[Size], ratio: float = 1.0) -> CalibratedSizes:
    return CalibratedSizes(
        Sizes(messages=sizes, environment=0), [size.tokens * ratio for size in sizes], 0.0, ratio
    )


_sizes = st.builds(Size, st.integers(0, 50_000), st.integers(0, 200_000))


def test_the_largest_length_that_suffices_is_used_for_users_and_results_only() -> None:
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), _NOTHING, 1_000) == (Mark(2, 32_768),)
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), _NOTHING, 9_000) == (
        Mark(2, 2_048),
        Mark(3, 2_048),
    )


def test_savings_are_measured_in_true_tokens() -> None:
    assert choose_shortening(_CONVERSATION, weigh(_SIZES, 4.0), _NOTHING, 4_000) == (Mark(2, 32_768),)


def test_the_smallest_length_is_used_if_none_suffices() -> None:
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), _NOTHING, 10**9) == (Mark(2, 256), Mark(3, 256))


def test_messages_that_are_shorter_already_or_covered_stay() -> None:
    marked = make_view(None, [make_batch(_CONVERSATION, [Mark(2)])])
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), marked, 10**9) == (Mark(3, 256),)
    covered = make_view(make_pivot(_CONVERSATION, 3), ())
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), covered, 10**9) == (Mark(3, 256),)


@given(bodies(min_turns=1), st.integers(1, 10**6), st.data())
def test_marks_save_the_excess_if_any_length_does(body: bytes, excess: int, data: st.DataObject) -> None:
    conversation = read(body).conversation
    count = len(conversation.messages)
    sizes = data.draw(st.lists(_sizes, min_size=count, max_size=count))
    marks = choose_shortening(conversation, weigh(sizes), _NOTHING, excess)
    saved = sum(sizes[mark.position].tokens - shown_tokens(sizes[mark.position], mark) for mark in marks)
    assert saved >= excess - 1 or all(mark.keep_chars == 256 for mark in marks)
    assert all(sizes[mark.position].chars > (mark.keep_chars or 0) for mark in marks)
    assert all(conversation.messages[mark.position].role in ("user", "tool") for mark in marks)
    again = make_view(None, [make_batch(conversation, marks)])
    if saved < excess - 1:
        assert choose_shortening(conversation, weigh(sizes), again, excess) == ()


def test_an_opening_is_cut_to_the_largest_length_that_fits() -> None:
    assert choose_opening_chars([Size(10_000, 40_000), Size(10, 40)], 9_000) == 32_768
    assert choose_opening_chars([Size(10_000, 40_000), Size(10, 40)], 5) == 256


@given(st.lists(_sizes, max_size=5), st.integers(0, 100_000))
def test_a_smaller_room_never_gives_a_larger_length(sizes: list[Size], room: int) -> None:
    assert choose_opening_chars(sizes, room) <= choose_opening_chars(sizes, room + 1_000)
