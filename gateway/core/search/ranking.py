"""Which pieces answer a query best, and which of them are given back.

Scores are those of BM25, from the counts of the searched pieces alone: what others say changes nothing.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import log
from typing import Final, NamedTuple

from gateway.core.search.cutting import PIECE_CHARS, estimate_tokens
from gateway.core.search.terms import Term, fold

# Of so many the texts are read.
_MOST_RANKED: Final = 120
# Robertson, Zaragoza: The Probabilistic Relevance Framework, 2009: the usual values.
_SATURATION: Final = 1.2
_LENGTH_SHARE: Final = 0.75

# The pieces that hold each term of a query.
Matches = Mapping[Term, Sequence[int]]


class PieceCandidate(NamedTuple):
    """What is known of a piece when the best are chosen. place: of its conversation and message."""

    place: tuple[object, ...]
    start: int
    end: int
    text: str


def choose_best(matches: Matches, total: int) -> list[int]:
    """The pieces that hold the most and the rarest terms, the best first. total: of the searched pieces."""
    scores: defaultdict[int, float] = defaultdict(float)
    for pieces in matches.values():
        weight = _weigh(pieces, total)
        for piece in pieces:
            scores[piece] += weight
    return _sort(scores)[:_MOST_RANKED]


def score_pieces(texts: Mapping[int, str], matches: Matches, total: int) -> list[int]:
    """The pieces by their texts, the best first. texts: with their extra words."""
    scores = dict.fromkeys(texts, 0.0)
    folded = {piece: fold(text) for piece, text in texts.items()}
    for term, pieces in matches.items():
        weight, looked_for = _weigh(pieces, total), fold(term.text)
        for piece in pieces:
            if piece in scores:
                times = max(1, folded[piece].count(looked_for))
                length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * len(texts[piece]) / PIECE_CHARS
                scores[piece] += weight * times / (times + _SATURATION * length)
    return _sort(scores)


def _weigh(pieces: Sequence[int], total: int) -> float:
    """The rarer the greater."""
    return log(1 + (max(0, total - len(pieces)) + 0.5) / (len(pieces) + 0.5))


def _sort(scores: Mapping[int, float]) -> list[int]:
    """Among equals the newer one, which has the greater number."""
    return sorted(scores, key=lambda piece: (-scores[piece], -piece))


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
        beside = [candidates[other] for other in chosen if candidates[other].place == candidate.place]
        if any(candidate.start < other.end and other.start < candidate.end for other in beside):
            continue
        chosen.append(at)
        texts.add(text)
        left -= tokens
    return chosen
