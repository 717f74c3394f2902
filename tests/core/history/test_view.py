import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.pivot import Mark
from gateway.core.history.view import (
    CLEARED_TOKENS,
    Size,
    View,
    make_view,
    measure,
    measure_range,
    shown_tokens,
)
from tests.builders.chat import bodies, converse, make_batch, make_pivot, pivots, read
from tests.builders.recalls import make_recall

_TALK = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
    {"role": "user", "content": "e"},
]
_CONVERSATION = converse(_TALK)
_SIZES = [Size(1, 1), Size(20, 80), Size(300, 1_200), Size(4_000, 16_000), Size(50_000, 200_000)]


@pytest.mark.parametrize(
    ("size", "mark", "expected"),
    [
        (Size(1_000, 4_000), None, 1_000),
        (Size(1_000, 4_000), Mark(0), CLEARED_TOKENS),
        (Size(5, 20), Mark(0), 5),
        (Size(1_000, 4_000), Mark(0, 400), 100 + CLEARED_TOKENS),
        (Size(1_000, 4_000), Mark(0, 4_000), 1_000),
        (Size(1_000, 0), Mark(0, 400), 1_000),
    ],
)
def test_the_size_of_a_shortened_message(size: Size, mark: Mark | None, expected: int) -> None:
    assert shown_tokens(size, mark) == expected


def test_without_a_pivot_everything_is_sent() -> None:
    assert measure(View(None, {}), _CONVERSATION, _SIZES, 7, 5) == 54_328
    assert measure(View(None, {}), _CONVERSATION, _SIZES, 7, 3) == 328


def test_a_pivot_counts_with_its_messages_and_the_opening() -> None:
    view = make_view(make_pivot(_CONVERSATION, 3, tokens=40, opening_tokens=2), ())
    assert (view.start, View(None, {}).start) == (3, 0)
    assert measure(view, _CONVERSATION, _SIZES, 7, 5) == 7 + 40 + 2 + 54_000
    assert measure(view, _CONVERSATION, _SIZES, 7, 2) == 7 + 40 + 2


def test_recalls_count_where_they_stand_unless_the_pivot_covers_them() -> None:
    recalls = [make_recall(_CONVERSATION, 1), make_recall(_CONVERSATION, 3), make_recall(_CONVERSATION, 3)]
    assert make_view(None, (), recalls).inserted == {1: 30, 3: 60}
    assert measure(make_view(None, (), recalls), _CONVERSATION, _SIZES, 7, 2) == 28 + 30
    assert measure(make_view(None, (), recalls), _CONVERSATION, _SIZES, 7, 5) == 54_328 + 90
    view = make_view(make_pivot(_CONVERSATION, 2, tokens=40, opening_tokens=2), (), recalls)
    assert view.inserted == {3: 60}


def test_marks_reduce_the_size_of_their_messages() -> None:
    view = make_view(None, [make_batch(_CONVERSATION, [Mark(4), Mark(1)])])
    assert measure_range(view, _SIZES, 1, 5) == 16 + 300 + 4_000 + 16
    assert measure_range(view, _SIZES, 2, 4) == 4_300


def test_newer_marks_apply_and_covered_ones_are_ignored() -> None:
    batches = [make_batch(_CONVERSATION, [Mark(2), Mark(4)]), make_batch(_CONVERSATION, [Mark(4, 256)])]
    assert make_view(None, batches).marks == {2: Mark(2), 4: Mark(4, 256)}
    assert make_view(make_pivot(_CONVERSATION, 3), batches).marks == {4: Mark(4, 256)}


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
    assert measure(marked, conversation, sizes, 7, count) <= measure(plain, conversation, sizes, 7, count)


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        (None, 1_000),
        (Mark(0), 300 + CLEARED_TOKENS),
        (Mark(0, 400), 300 + 70 + CLEARED_TOKENS),
        (Mark(0, 8_000), 1_000),
    ],
)
def test_the_kept_part_of_a_marked_message_is_sent(mark: Mark | None, expected: int) -> None:
    size = Size(1_000, 4_000, kept=300)
    assert (size.removable, shown_tokens(size, mark)) == (700, expected)
