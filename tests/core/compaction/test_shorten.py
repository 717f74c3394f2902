from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.shorten import choose_shortening
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


_sizes = st.builds(lambda tokens, chars: Size(tokens, chars), st.integers(0, 50_000), st.integers(0, 200_000))


def test_the_largest_length_that_suffices_is_used_for_users_and_results_only() -> None:
    some = choose_shortening(_CONVERSATION, weigh(_SIZES), _NOTHING, 1_000)
    assert [mark.position for mark in some] == [2]
    assert _save(some) == pytest.approx(1_000, abs=5)
    more = choose_shortening(_CONVERSATION, weigh(_SIZES), _NOTHING, 9_500)
    assert [mark.position for mark in more] == [2, 3]
    assert len({mark.keep_chars for mark in more}) == 1
    assert _save(more) == pytest.approx(9_500, abs=5)


def test_savings_are_measured_in_true_tokens() -> None:
    marks = choose_shortening(_CONVERSATION, weigh(_SIZES, 4.0), _NOTHING, 4_000)
    assert _save(marks) == pytest.approx(1_000, abs=5)


def test_nothing_is_cut_if_no_length_suffices_or_nothing_has_to_be_saved() -> None:
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), _NOTHING, 10**9) == ()
    assert choose_shortening(_CONVERSATION, weigh(_SIZES), _NOTHING, 0) == ()


def test_only_messages_that_may_be_cut_are() -> None:
    marks = choose_shortening(_CONVERSATION, weigh(_SIZES), _NOTHING, 500, frozenset({3}))
    assert [mark.position for mark in marks] == [3]


def _save(marks: tuple[Mark, ...]) -> int:
    return sum(_SIZES[mark.position].tokens - shown_tokens(_SIZES[mark.position], mark) for mark in marks)


def test_messages_that_are_shorter_already_or_covered_stay() -> None:
    marked = make_view(None, [make_batch(_CONVERSATION, [Mark(2)])])
    assert [mark.position for mark in choose_shortening(_CONVERSATION, weigh(_SIZES), marked, 500)] == [3]
    covered = make_view(make_pivot(_CONVERSATION, 3), ())
    assert [mark.position for mark in choose_shortening(_CONVERSATION, weigh(_SIZES), covered, 500)] == [3]


@given(bodies(min_turns=1), st.integers(1, 10**6), st.data())
def test_marks_save_the_excess_if_any_length_does(body: bytes, excess: int, data: st.DataObject) -> None:
    conversation = read(body).conversation
    count = len(conversation.messages)
    sizes = data.draw(st.lists(_sizes, min_size=count, max_size=count))
    marks = choose_shortening(conversation, weigh(sizes), _NOTHING, excess)
    saved = sum(sizes[mark.position].tokens - shown_tokens(sizes[mark.position], mark) for mark in marks)
    shortest = sum(
        size.tokens - shown_tokens(size, Mark(0, 256))
        for size, message in zip(sizes, conversation.messages, strict=True)
        if message.role in ("user", "tool") and size.chars > 256
    )
    assert saved >= excess - 1 if marks else shortest < excess + 1
    assert all(sizes[mark.position].chars > (mark.keep_chars or 0) for mark in marks)
    assert all(conversation.messages[mark.position].role in ("user", "tool") for mark in marks)
