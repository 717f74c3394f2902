"""Questions to the index of one conversation: see `index_file`."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from gateway.core.search.ranking import fuse
from gateway.core.search.terms import QueryTerms, quote_terms, split_grams
from gateway.originals.index_file import limit_search
from gateway.originals.parts import join_texts
from gateway.originals.search import MentionedFile, OriginalText

# How many pieces each ranking names.
_MOST_RANKED: Final = 60
# Ranking a thousand pieces takes some 2 ms. Words that stand in more of them are left out if others are
# rarer; if none is, only the newest pieces are ranked. Each further word takes time, too.
_MOST_MATCHES: Final = 1_500
_MOST_WORDS: Final = 12
_MOST_PHRASES: Final = 4
# A word that stands in more pieces is found without those that it is a part of.
_MOST_ALONE: Final = 10
# Of the words that hold a part: how many are looked at, and how many are looked for.
_MOST_LOOKED_AT: Final = 200
_MOST_PARTED: Final = 8
_MOST_PARTS: Final = 6
_MOST_POSITIONS: Final = 20
_FOREVER: Final = 1 << 62


class FoundRow(NamedTuple):
    """A piece, with what the ranking in its conversation gave it."""

    score: float
    position: int
    digest: str
    start: int
    role: str
    tool: str | None
    path: str | None
    text: str
    time: float


class Bound(NamedTuple):
    """What may be found: messages before a position that have not expired by now (Unix time)."""

    before: int
    now: float


def make_bound(before: int | None, now: float) -> Bound:
    return Bound(_FOREVER if before is None else before, now)


def find_pieces(
    index: sqlite3.Connection,
    bound: Bound,
    terms: QueryTerms,
    most: int,
    accepts: Callable[[int, str], bool] | None = None,
) -> list[FoundRow]:
    """The best first. accepts: see `Scope`."""
    limit_search(index, _find_own(index, bound, accepts) if accepts is not None else None)
    ranked = fuse([_rank_words(index, terms, bound), _rank_parted(index, terms, bound)])
    return [_load_row(index, piece, score) for piece, score in ranked[:most]]


def _find_own(index: sqlite3.Connection, bound: Bound, accepts: Callable[[int, str], bool]) -> frozenset[int]:
    """The messages that are accepted, and those from which their chain comes.

    A client that has dropped or cleared old messages no longer tells their links, but that of its pivot, or
    of a later message. A message without a link may be another history's.
    """
    found = index.execute(
        "SELECT id, position, link, link_before FROM messages "
        "WHERE position < ? AND expires > ? AND link <> '' ORDER BY position DESC",
        bound,
    )
    own, before = set[int](), set[str]()
    for message, position, link, link_before in found:
        if link in before or accepts(position, link):
            own.add(message)
            before.add(link_before)
    return frozenset(own)


def read_message(
    index: sqlite3.Connection, conversation: str, position: int, bound: Bound
) -> OriginalText | None:
    """Whole. The newest, if several have been at this position."""
    found = index.execute(
        "SELECT id, role, time FROM messages WHERE position = ? AND position < ? AND expires > ? "
        "ORDER BY id DESC LIMIT 1",
        (position, *bound),
    ).fetchone()
    if found is None:
        return None
    message, role, taken = found
    rows = index.execute(
        "SELECT start, text, tool, path FROM pieces WHERE message = ? ORDER BY start", (message,)
    ).fetchall()
    text = join_texts([(start, said) for start, said, _, _ in rows])
    return OriginalText(
        conversation=conversation,
        position=position,
        role=role,
        tool=next((tool for _, _, tool, _ in rows if tool), None),
        path=next((path for _, _, _, path in rows if path), None),
        text=text,
        total_chars=len(text),
        time_seconds=taken,
    )


def list_mentions(index: sqlite3.Connection, bound: Bound, most: int) -> list[MentionedFile]:
    """The most recently mentioned first."""
    found = index.execute(
        "SELECT path, count(DISTINCT position), max(position) FROM mentions JOIN messages ON id = message "
        "WHERE position < ? AND expires > ? GROUP BY path ORDER BY max(position) DESC, path LIMIT ?",
        (*bound, most),
    ).fetchall()
    return [
        MentionedFile(path=path, mentions=mentions, positions=_find_positions(index, path, bound))
        for path, mentions, _ in found
    ]


def _find_positions(index: sqlite3.Connection, path: str, bound: Bound) -> list[int]:
    found = index.execute(
        "SELECT DISTINCT position FROM mentions JOIN messages ON id = message "
        "WHERE path = ? AND position < ? AND expires > ? ORDER BY position DESC LIMIT ?",
        (path, *bound, _MOST_POSITIONS),
    )
    return sorted(position for (position,) in found)


# Rankings.


def _rank_words(index: sqlite3.Connection, terms: QueryTerms, bound: Bound) -> list[int]:
    """By the words and phrases of the query."""
    chosen = _choose_words(index, terms.words)
    return _rank(index, [*chosen.words, *terms.phrases[:_MOST_PHRASES]], chosen.matches, bound)


def _rank_parted(index: sqlite3.Connection, terms: QueryTerms, bound: Bound) -> list[int]:
    """By words that the words of the query are a part of."""
    rare = (part for part in terms.parts if _count_pieces(index, part) <= _MOST_ALONE)
    parted = dict.fromkeys(word for part in islice(rare, _MOST_PARTS) for word in _find_parted(index, part))
    chosen = _choose_words(index, list(parted))
    return _rank(index, chosen.words, chosen.matches, bound)


class _ChosenWords(NamedTuple):
    """matches: how many pieces they may match."""

    words: list[str]
    matches: int


def _choose_words(index: sqlite3.Connection, words: Sequence[str]) -> _ChosenWords:
    """The rarest. A word that the vocabulary does not have matches nothing."""
    counted = sorted((count, word) for word in words if (count := _count_pieces(index, word)))
    chosen, matches = list[str](), 0
    for count, word in counted:
        if len(chosen) == _MOST_WORDS or (chosen and matches + count > _MOST_MATCHES):
            break
        chosen.append(word)
        matches += count
    return _ChosenWords(chosen, matches)


def _count_pieces(index: sqlite3.Connection, word: str) -> int:
    found = index.execute("SELECT pieces FROM vocabulary WHERE word = ?", (word,)).fetchone()
    return int(found[0]) if found is not None else 0


def _find_parted(index: sqlite3.Connection, part: str) -> Iterator[str]:
    """The shortest words that the part is a part of. It has been looked for as a word itself."""
    asked = quote_terms(split_grams(part), "AND")
    if not asked:
        return
    found = index.execute(
        "SELECT vocabulary.word FROM grams JOIN vocabulary ON vocabulary.id = grams.rowid "
        "WHERE grams MATCH ? ORDER BY grams.rowid LIMIT ?",
        (asked, _MOST_LOOKED_AT),
    )
    holding = sorted((word for (word,) in found if part in word and part != word), key=len)
    yield from holding[:_MOST_PARTED]


def _find_first(index: sqlite3.Connection, matches: int) -> int:
    """The number of the first piece that is ranked: 0, or where about so many newer ones match."""
    if matches <= _MOST_MATCHES:
        return 0
    (last,) = index.execute("SELECT max(id) FROM pieces").fetchone()
    return int(last * (1 - _MOST_MATCHES / matches))


def _rank(index: sqlite3.Connection, words: Sequence[str], matches: int, bound: Bound) -> list[int]:
    """Without a look at each match's message first: most are allowed. matches: see _ChosenWords."""
    if not words:
        return []
    asked, first = quote_terms(words, "OR"), _find_first(index, matches)
    found = index.execute(
        "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? ORDER BY rank LIMIT ?",
        (asked, first, _MOST_RANKED),
    ).fetchall()
    allowed = [piece for (piece,) in found if _is_allowed(index, piece, bound)]
    if len(allowed) == len(found) or (len(found) < _MOST_RANKED and not first):
        return allowed
    slow = index.execute(
        "SELECT words.rowid FROM words JOIN pieces ON pieces.id = words.rowid "
        "JOIN messages ON messages.id = pieces.message "
        "WHERE words MATCH ? AND position < ? AND expires > ? AND is_searched(messages.id) "
        "ORDER BY rank LIMIT ?",
        (asked, *bound, _MOST_RANKED),
    )
    return [piece for (piece,) in slow]


def _is_allowed(index: sqlite3.Connection, piece: int, bound: Bound) -> bool:
    found = index.execute(
        "SELECT 1 FROM messages WHERE id = (SELECT message FROM pieces WHERE id = ?) "
        "AND position < ? AND expires > ? AND is_searched(id)",
        (piece, *bound),
    )
    return found.fetchone() is not None


def _load_row(index: sqlite3.Connection, piece: int, score: float) -> FoundRow:
    row = index.execute(
        "SELECT position, digest, start, pieces.role, tool, path, text, time FROM pieces "
        "JOIN messages ON messages.id = pieces.message WHERE pieces.id = ?",
        (piece,),
    ).fetchone()
    return FoundRow(score, *row)
