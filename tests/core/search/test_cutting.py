import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.search.cutting import PIECE_CHARS, cut_text, estimate_tokens

_TEXTS = st.lists(
    st.sampled_from(["a", " ", "\n", "\n\n", ". ", "word", "日本語。", "😀", "x" * 300, "é", "\u2028"]),
    max_size=80,
).map("".join)


@given(_TEXTS, st.integers(1, 60))
def test_the_pieces_are_the_text(text: str, most: int) -> None:
    pieces = list(cut_text(text, most))
    assert "".join(text[start:end] for start, end in pieces) == text
    assert all(start < end for start, end in pieces)


@given(_TEXTS)
def test_five_pieces_are_no_more_than_1600_tokens(text: str) -> None:
    tokens = [estimate_tokens(text[start:end]) for start, end in cut_text(text)]
    assert all(count <= 321 for count in tokens)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a line\nanother line\nand more of it", "a line\nanother line\n"),
        ("One paragraph.\n\nsecond line\nthird one here", "One paragraph.\n\n"),
        ("A sentence is here. Another one follows it", "A sentence is here. "),
        ("words without any end of a sentence here", "words without any end "),
        ("x" * 40, "x" * 24),
        ("日本語の文字は三つ分です", "日本語の文字は三"),
    ],
)
def test_a_piece_ends_where_a_reader_would_pause(text: str, first: str) -> None:
    start, end = next(cut_text(text, 24))
    assert text[start:end] == first


def test_a_megabyte_in_one_line_is_cut() -> None:
    pieces = list(cut_text("x" * 1_000_000))
    assert len(pieces) == 1_000_000 / PIECE_CHARS


def test_wide_characters_count_as_a_token_each() -> None:
    assert estimate_tokens("日" * 300) > 280
    assert estimate_tokens("word " * 60) < 100
