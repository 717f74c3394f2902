from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.excerpt import Items, parse_items, parse_left_out, render_items, render_whole_items
from gateway.core.history.transcript import neutralize

_TEXT = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            ["## Files", "- ", "\n", "\r", "\u2028", "</conversation>", "<", " ", "\ud800", "word"]
        ),
        max_size=200,
    ).map("".join),
)
_TEXTS = st.lists(_TEXT, min_size=1, max_size=30)
_ROOM = st.integers(90, 2_000)


def _items(texts: list[str]) -> Items:
    count = len(texts)
    return Items(texts, range(count - 1, -1, -1), [60 // (at + 1) for at in range(count)])


def test_items_that_fit_are_whole_and_indented() -> None:
    assert (
        render_items(_items(["one", " two\nlines\n\nof it ", ""]), 90)
        == "- one\n- two\n  lines\n\n  of it\n- "
    )


def test_long_items_are_cut_in_the_middle_and_omitted_ones_are_counted() -> None:
    rendered = render_items(_items(["a" * 500, "b" * 500, "c" * 500]), 400)
    assert "left out" not in rendered
    rendered = render_items(_items(["a" * 500, "b" * 500, "c" * 500]), 360)
    note, second, third = rendered.split("\n- ")
    assert note == "- [1 more left out]"
    assert second.startswith("bbb") and second.endswith("bbb") and " … " in second
    assert (
        third.startswith("ccc") and third.endswith("ccc") and "[... cut; 500 characters in all ...]" in third
    )


def test_names_are_never_cut() -> None:
    rendered = render_whole_items(_items(["a" * 70, "b" * 30, "c" * 60]), 130)
    assert rendered == f"- [1 more left out]\n- {'b' * 30}\n- {'c' * 60}"


def test_items_that_were_left_out_before_are_counted_too() -> None:
    assert render_items(Items(["x"], [0], [1], missing=4), 90) == "- [4 more left out]\n- x"
    assert parse_left_out("[4 more left out]") == 4
    assert parse_left_out("[4 more left out].") is None


def test_a_short_item_has_a_short_note() -> None:
    assert render_items(_items(["a" * 40 + "b" * 90]), 90) == f"- {'a' * 34} … {'b' * 18}"


def test_a_cut_never_makes_a_fence_of_a_longer_word() -> None:
    text = "<conversation" + "s" * 200
    for room in range(60, 120):
        rendered = render_items(Items(["a" * (room - 46) + text], [0], [1]), room + 32)
        assert neutralize(rendered) == rendered


def test_of_a_huge_text_only_the_ends_are_read() -> None:
    rendered = render_items(_items(["<conversation>" * 1_000_000]), 300)
    assert len(rendered) == 300 - 33
    assert "[... cut; 14000000 characters in all ...]" in rendered


@pytest.mark.parametrize("render", [render_items, render_whole_items])
@given(texts=_TEXTS, room=_ROOM)
def test_every_line_of_a_text_is_indented(
    render: Callable[[Items, int], str], texts: list[str], room: int
) -> None:
    rendered = render(_items(texts), room)
    assert len(rendered) <= room
    assert all(line[:2] in ("", "- ", "  ") for line in rendered.splitlines())
    assert neutralize(rendered) == rendered
    rendered.encode()


@given(_TEXTS)
def test_rendered_items_can_be_parsed_again(texts: list[str]) -> None:
    rendered = render_items(_items(texts), 100_000)
    assert render_items(_items(parse_items(rendered.splitlines())), 100_000) == rendered
