from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.edits import Edit, apply_edits


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[bytes], list[bytes | None]]:
    """Pieces of a body, and for each what it becomes; None leaves it."""
    pieces = draw(st.lists(st.binary(min_size=1, max_size=5), max_size=8))
    return pieces, [draw(st.one_of(st.none(), st.binary(max_size=5))) for _ in pieces]


def test_no_edit_gives_back_the_very_same_object() -> None:
    data = b"abc"
    assert apply_edits(data, []) is data


@given(edited(), st.randoms())
def test_only_what_is_edited_changes_and_the_order_of_the_edits_does_not_matter(
    case: tuple[list[bytes], list[bytes | None]], rng: Random
) -> None:
    pieces, replacements = case
    edits, at = [], 0
    for piece, new in zip(pieces, replacements, strict=True):
        if new is not None:
            edits.append(Edit(at, at + len(piece), new))
        at += len(piece)
    rng.shuffle(edits)
    expected = b"".join(
        piece if new is None else new for piece, new in zip(pieces, replacements, strict=True)
    )
    assert apply_edits(b"".join(pieces), edits) == expected


@pytest.mark.parametrize(("at", "expected"), [(0, b"Xabc"), (1, b"aXbc"), (3, b"abcX")])
def test_an_empty_range_inserts(at: int, expected: bytes) -> None:
    assert apply_edits(b"abc", [Edit(at, at, b"X")]) == expected


def test_an_insertion_may_touch_a_replacement() -> None:
    assert apply_edits(b"abc", [Edit(1, 2, b"B"), Edit(1, 1, b"-"), Edit(2, 2, b"+")]) == b"a-B+c"


def test_edits_that_overlap_are_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="overlap"):
        apply_edits(b"abcd", [Edit(0, 2, b""), Edit(1, 3, b"")])
