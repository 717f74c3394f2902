"""How much of what the next replies need is visible after compactions: alone, after one search, with auto.

Each recorded session runs through a window of 32K and is compacted wherever that is full, by the functions
that stand for a model in `facts`, with the list of facts that the gateway adds. A reply needs the names in
its texts and calls that the replaced messages have said before. Visible are the opening, the summary and the
messages that stay. One search is asked for the names that are needed and not visible, as a model would that
knows what it misses; auto knows nothing of what comes. Both bring at most 1,600 tokens.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.facts import Fold, extract, find_share, load_sessions, lose, with_list
from bench.table import print_table
from gateway.core.digest.facts import find_names
from gateway.core.history.lists import NOTHING_TOLD, Told
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.search.ranking import PieceCandidate, choose_pieces
from gateway.core.search.terms import find_terms
from gateway.originals.beside_summary import PieceChooser, PlacedPart
from gateway.originals.index import IndexBatch, IndexedMessage, add_batch, find_pieces, open_index
from gateway.originals.parts import Part

# Of a window of 32,768 tokens, by the preset `adaptive`.
_HARD_TOKENS: Final = 24_576
_TAIL_TOKENS: Final = 3_686
_OPENING_CHARS: Final = 14_745
_CAP_CHARS: Final = 9_830
_CHARS_PER_TOKEN: Final = 4
_FRAME_TOKENS: Final = 4
_LIST_SHARE: Final = 0.2
_REPLIES: Final = 30
# Shares of fewer names say nothing.
_FEWEST_NAMES: Final = 5
_MOST_TOKENS: Final = 1_600
_MOST_PIECES: Final = 5
_MOST_MESSAGES: Final = 200
# The first, the third, and every third from the tenth on.
_FIRST_OF_MANY: Final = 10
_EVERY: Final = 3
_ASKED_NAMES: Final = 16
_FOREVER: Final = 1e12

Texts = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """A session after a compaction. number: of the compaction, from 1. start, covers, end: the opening is
    before start, the messages from covers to end stay.
    """

    number: int
    start: int
    covers: int
    end: int
    opening: str
    told: Told


@dataclass(frozen=True, slots=True)
class Visible:
    """Shares of the names that the next replies need."""

    alone: float
    search: float
    auto: float
    # Of the paths among them, alone; None without any.
    paths: float | None


def print_recall() -> None:
    sessions = [session for session in load_sessions() if _count(session) > _HARD_TOKENS]
    if not sessions:
        print("\nRecall: no recorded sessions")
        return
    rows = []
    for name, summarize in (("extractive", extract), ("lossy", lose)):
        shares: defaultdict[int, list[Visible]] = defaultdict(list)
        for session in sessions:
            for number, visible in measure_session(session, with_list(summarize, _LIST_SHARE)).items():
                shares[number].append(visible)
        for number, found in sorted(shares.items()):
            mean = mean_of(found)
            rows.append(_render_row(f"{name}, after {number}", len(found), mean))
    columns = ["", "sessions", "visible", "one search", "auto", "search adds", "auto adds", "paths"]
    print_table(f"Names that the next {_REPLIES} replies need, window 32K", columns, rows)


def _render_row(name: str, sessions: int, mean: Visible) -> tuple[str, ...]:
    adds = [f"{100 * (share - mean.alone):+.0f}" for share in (mean.search, mean.auto)]
    shares = [f"{share:.0%}" for share in (mean.alone, mean.search, mean.auto)]
    paths = "" if mean.paths is None else f"{mean.paths:.0%}"
    return (name, str(sessions), *shares, *adds, paths)


def measure_session(session: Sequence[TranscriptEntry], fold: Fold) -> dict[int, Visible]:
    """After 1, 3 and 10 compactions, as far as there are so many; 10 stands for all later ones, too."""
    found: defaultdict[int, list[Visible]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        _fill_index(index, session)
        for compacted in compact(session, fold):
            column = _find_column(compacted.number)
            visible = _measure(session, compacted, index) if column else None
            if visible is not None:
                found[column].append(visible)
    return {column: mean_of(shares) for column, shares in found.items()}


def mean_of(shares: Sequence[Visible]) -> Visible:
    return Visible(
        sum(each.alone for each in shares) / len(shares),
        sum(each.search for each in shares) / len(shares),
        sum(each.auto for each in shares) / len(shares),
        _mean_known([each.paths for each in shares]),
    )


def _mean_known(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def _find_column(number: int) -> int:
    if number >= _FIRST_OF_MANY:
        return _FIRST_OF_MANY if (number - _FIRST_OF_MANY) % _EVERY == 0 else 0
    return number if number in (1, 3) else 0


# Compacting.


def compact(session: Sequence[TranscriptEntry], fold: Fold) -> Iterator[Compacted]:
    start = next((at for at, entry in enumerate(session) if entry.role == "assistant"), 0)
    opening = "\n".join(map(_say, session[:start]))[:_OPENING_CHARS]
    covers, told, number = start, NOTHING_TOLD, 0
    used = len(opening) // _CHARS_PER_TOKEN
    for end in range(start + 1, len(session)):
        used += _count(session[end - 1 : end])
        if used <= _HARD_TOKENS or not _is_turn_of_model(session, end):
            continue
        cut = _find_cut(session, covers, end)
        if cut <= covers:
            continue
        told, covers, number = (
            fold(session[covers:cut], told, _CAP_CHARS, session[cut:end]),
            cut,
            number + 1,
        )
        used = (len(opening) + len(told.text)) // _CHARS_PER_TOKEN + _count(session[cut:end])
        yield Compacted(number=number, start=start, covers=cut, end=end, opening=opening, told=told)


def _is_turn_of_model(session: Sequence[TranscriptEntry], end: int) -> bool:
    return session[end - 1].role != "assistant" and not session[end].is_result


def _find_cut(session: Sequence[TranscriptEntry], covers: int, end: int) -> int:
    """Where the largest tail begins that is small enough, or the open group."""
    cut = end
    while cut > covers and _count(session[cut - 1 : end]) <= _TAIL_TOKENS:
        cut -= 1
    cut = min(cut, end - 1)
    while cut > covers and session[cut].is_result:
        cut -= 1
    return cut


def _say(entry: TranscriptEntry) -> str:
    return "\n".join([entry.text, *(f"{tool}\n{arguments}" for tool, arguments in entry.calls)])


def _count(entries: Sequence[TranscriptEntry]) -> int:
    return sum(len(_say(entry)) // _CHARS_PER_TOKEN + _FRAME_TOKENS for entry in entries)


# Measuring.


def _measure(session: Sequence[TranscriptEntry], compacted: Compacted, index: Path) -> Visible | None:
    replaced = _list_names(session[compacted.start : compacted.covers])
    replies = [entry for entry in session[compacted.end :] if entry.role == "assistant"][:_REPLIES]
    needed = [name for name in _list_names(replies) if name in replaced]
    if len(needed) < _FEWEST_NAMES:
        return None
    tail = map(_say, session[compacted.covers : compacted.end])
    alone = "\n".join([compacted.opening, compacted.told.spelled_out, *tail])
    asked = " ".join([name for name in needed if name not in alone][:_ASKED_NAMES])
    both = _search(index, asked, compacted.covers), _choose(session, compacted, alone)
    search, auto = ("\n".join([alone, *pieces]) for pieces in both)
    paths = [name for name in needed if "/" in name and "://" not in name]
    return Visible(
        find_share(alone, needed),
        find_share(search, needed),
        find_share(auto, needed),
        find_share(alone, paths) if paths else None,
    )


def _list_names(entries: Sequence[TranscriptEntry]) -> dict[str, None]:
    return dict.fromkeys(
        name for entry in entries for part in _parts(entry) for name in find_names(part.text)
    )


def _parts(entry: TranscriptEntry) -> list[Part]:
    role = "tool" if entry.is_result else entry.role
    calls = [f"{tool}\n{_unescape(arguments)}" for tool, arguments in entry.calls]
    parts, start = [], 0
    for text in (entry.text, *calls):
        if text:
            parts.append(Part(start, role, None, None, text))
            start += len(text) + 2
    return parts


def _unescape(arguments: str) -> str:
    return arguments.replace("\\n", "\n").replace('\\"', '"')


def _fill_index(path: Path, session: Sequence[TranscriptEntry]) -> None:
    """Each message as a list of its own, so that a search can end before any."""
    path.touch()
    with closing(open_index(path)) as index:
        index.execute("PRAGMA synchronous=OFF")
        for position, entry in enumerate(session):
            messages = [IndexedMessage(position, _parts(entry))]
            add_batch(index, IndexBatch("", f"bench/{position}", 0, 1, _FOREVER, messages))


def _search(path: Path, query: str, before: int) -> Texts:
    with closing(open_index(path)) as index:
        rows = find_pieces(index, "", [f"bench/{position}" for position in range(before)], find_terms(query))
    candidates = [
        PieceCandidate((row.position,), row.start, row.start + len(row.text), row.text) for row in rows
    ]
    return [rows[at].text for at in choose_pieces(candidates, _MOST_PIECES, _MOST_TOKENS)]


def _choose(session: Sequence[TranscriptEntry], compacted: Compacted, visible: str) -> Texts:
    chooser, covers = PieceChooser(visible), compacted.covers
    for position in range(covers - 1, max(compacted.start, covers - _MOST_MESSAGES) - 1, -1):
        if chooser.is_full:
            break
        chooser.add([PlacedPart(position, covers - position, part) for part in _parts(session[position])])
    return [piece.text for piece in chooser.choose("bench", _MOST_TOKENS)]
