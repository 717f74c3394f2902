from hypothesis import given
from hypothesis import strategies as st

from gateway.core.search.cutting import estimate_tokens
from gateway.core.search.ranking import PieceCandidate, choose_pieces, fuse

_CANDIDATES = st.lists(
    st.builds(
        lambda place, start, text: PieceCandidate((place,), start, start + len(text), text),
        st.integers(0, 2),
        st.integers(0, 30),
        st.text("ab ", max_size=40),
    ),
    max_size=20,
)


def test_what_two_rankings_rank_well_is_first() -> None:
    assert [piece for piece, _ in fuse([[1, 2, 3], [4, 2, 5]])] == [2, 4, 1, 5, 3]


def test_one_ranking_keeps_its_order() -> None:
    assert [piece for piece, _ in fuse([[7, 3, 9], []])] == [7, 3, 9]


@given(st.lists(st.lists(st.integers(0, 9), unique=True), max_size=3))
def test_fusing_neither_loses_nor_repeats_a_piece(rankings: list[list[int]]) -> None:
    fused = [piece for piece, _ in fuse(rankings)]
    assert sorted(fused) == sorted({piece for ranking in rankings for piece in ranking})


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
