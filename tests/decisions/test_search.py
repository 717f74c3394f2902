"""Pieces of originals that a query finds, and which of them are given back."""

import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.search.cutting import cut_text, estimate_tokens
from gateway.core.search.ranking import PieceCandidate, choose_pieces
from gateway.core.search.terms import find_terms, quote_term

_TEXTS = st.lists(
    st.sampled_from(["a", " ", "\n", "\n\n", ". ", "word", "日本語。", "😀", "x" * 300, "é", "\u2028"]),
    max_size=80,
).map("".join)


@given(_TEXTS, st.integers(1, 60))
def test_the_pieces_are_the_text(text: str, most: int) -> None:
    pieces = list(cut_text(text, most))
    assert "".join(text[start:end] for start, end in pieces) == text
    assert all(start < end for start, end in pieces)


_CANDIDATES = st.lists(
    st.builds(
        lambda place, start, text: PieceCandidate((place,), start, start + len(text), text),
        st.integers(0, 2),
        st.integers(0, 30),
        st.text("ab ", max_size=40),
    ),
    max_size=20,
)


@given(_CANDIDATES, st.integers(0, 6), st.integers(0, 60))
def test_chosen_pieces_fit_and_say_nothing_twice(
    candidates: list[PieceCandidate], most: int, tokens: int
) -> None:
    chosen = [candidates[at] for at in choose_pieces(candidates, most, tokens)]
    assert len(chosen) <= most
    assert sum(estimate_tokens(each.text) for each in chosen) <= tokens
    assert len({each.text.strip() for each in chosen}) == len(chosen)
    for at, one in enumerate(chosen):
        others = [other for other in chosen[:at] if other.place == one.place]
        assert all(one.end <= other.start or other.end <= one.start for other in others)


def test_a_piece_that_does_not_fit_leaves_room_for_a_shorter_one() -> None:
    long, short = PieceCandidate(("a",), 0, 400, "x" * 400), PieceCandidate(("b",), 0, 4, "word")
    assert choose_pieces([long, short], 5, 100) == [1]


@given(st.text(max_size=200))
def test_any_query_is_only_text_to_sqlite(query: str) -> None:
    terms = find_terms(query)
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
        asked = " OR ".join(map(quote_term, terms))
        if asked and not any("\ud800" <= c <= "\udfff" for c in asked):
            connection.execute("SELECT * FROM words WHERE words MATCH ?", (asked,)).fetchall()
    connection.close()
