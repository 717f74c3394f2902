"""Several rankings of pieces as one, and the best of them that fit."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gateway.core.search.cutting import estimate_tokens

# Reciprocal rank fusion: Cormack, Clarke, Büttcher, SIGIR 2009, found 60 good and not sensitive.
_FUSION: Final = 60


class Ranked(NamedTuple):
    """piece: its number. score: greater is better; of one search only."""

    piece: int
    score: float


class PieceCandidate(NamedTuple):
    """What is known of a piece when the best are chosen. place: of its conversation and message."""

    place: tuple[object, ...]
    start: int
    end: int
    text: str


def fuse(rankings: Iterable[Sequence[int]]) -> list[Ranked]:
    """The best first. Each ranking names pieces, the best first; a piece that several rank well wins."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, piece in enumerate(ranking, 1):
            scores[piece] += 1 / (_FUSION + rank)
    # Among equals the newer one, which has the greater number.
    return [Ranked(*each) for each in sorted(scores.items(), key=lambda each: (-each[1], -each[0]))]


def choose_pieces(candidates: Sequence[PieceCandidate], most: int, max_tokens: int) -> list[int]:
    """The places in the sequence of those that are chosen, in its order.

    Leaves out what repeats a text, overlaps a better piece, or does not fit beside the better ones.
    """
    chosen: list[int] = []
    texts: set[str] = set()
    left = max_tokens
    for at, candidate in enumerate(candidates):
        if len(chosen) == most:
            break
        tokens = estimate_tokens(candidate.text)
        text = candidate.text.strip()
        if not text or text in texts or tokens > left:
            continue
        if any(_overlap(candidate, candidates[other]) for other in chosen):
            continue
        chosen.append(at)
        texts.add(text)
        left -= tokens
    return chosen


def _overlap(one: PieceCandidate, other: PieceCandidate) -> bool:
    return one.place == other.place and one.start < other.end and other.start < one.end
