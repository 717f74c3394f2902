"""How many facts survive repeated compaction, with and without a list of facts under the summary or digest.

Each recorded session is cut into eleven pieces. Ten of them are compacted one after the other by simple
functions that stand for a model. The facts are those that two messages mention, or one of the newest fifth of
a piece, and a few that are added to the first piece only. No gateway runs.
"""

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from bench.table import print_table
from gateway.core.digest.digest import FoldedHistory, make_digest, make_lists
from gateway.core.digest.facts import find_facts, is_secret
from gateway.core.history.lists import NOTHING_TOLD, Told
from gateway.core.history.message import Call, Message, Role
from gateway.core.history.transcript import TranscriptEntry
from gateway.wire.registry import CHAT

_SHARED: Final = Path(os.environ.get("GATEWAY_SHARED") or Path(__file__).resolve().parents[2] / "shared")
_PIECES: Final = 11
_SHOWN: Final = (1, 3, 10)
# A summary of 4,096 tokens, at three characters per token.
_CAP_CHARS: Final = 12_288
# Shares of the summary that the list may take.
_LIST_SHARES: Final = (0.1, 0.2, 0.3)
# The most frequent facts of a session are counted apart, since not all facts fit.
_TOP: Final = 40
# The lossy summary keeps one name of three.
_KEPT_OF: Final = 3

_NEWEST_PART: Final = 5


class Fold(Protocol):
    """Stands for a model: a summary of the piece and of the earlier summary. shown: what stays beside it."""

    def __call__(
        self,
        piece: Sequence[TranscriptEntry],
        earlier: Told,
        cap_chars: int,
        shown: Sequence[TranscriptEntry] = (),
    ) -> Told: ...


@dataclass(frozen=True, slots=True)
class Survival:
    """Shares of the facts that are present after a compaction: of all, the most frequent, the planted."""

    counted: float
    top: float
    planted: float


def print_facts() -> None:
    sessions = list(load_sessions())
    if not sessions:
        print(f"\nFacts: no recorded sessions in {_SHARED}")
        return
    folds: dict[str, Fold] = {}
    for name, summarize in (("extractive", extract), ("lossy", lose)):
        folds[f"{name}, no list"] = summarize
        for share in _LIST_SHARES:
            folds[f"{name}, list of {share:.0%}"] = with_list(summarize, share)
    folds["digest"] = _digest
    rows = []
    for name, fold in folds.items():
        means = _mean([_measure(session, fold) for session in sessions])
        figures = [getattr(mean, kind) for kind in ("counted", "top", "planted") for mean in means]
        rows.append((name, *(f"{figure:.0%}" for figure in figures)))
    columns = ["", *(f"{kind} {at}" for kind in ("all", f"top {_TOP}", "planted") for at in _SHOWN)]
    title = f"Facts present after 1, 3 and 10 compactions: mean of {len(sessions)} sessions"
    print_table(f"{title}, cap {_CAP_CHARS} characters", columns, rows)


def load_sessions() -> Iterator[list[TranscriptEntry]]:
    """Sessions with enough messages, without their system prompts."""
    for path in sorted((_SHARED / "data" / "transcripts").glob("*/*.json")):
        entries = _read_session(path)
        if len(entries) >= 2 * _PIECES:
            yield [entry for entry in entries if entry.role != "system"]


def load_session(name: str) -> list[TranscriptEntry] | None:
    """One of them, by its path among the transcripts; None if there is none."""
    path = _SHARED / "data" / "transcripts" / name
    return [entry for entry in _read_session(path) if entry.role != "system"] if path.is_file() else None


def _read_session(path: Path) -> list[TranscriptEntry]:
    messages = json.loads(path.read_text("utf-8"))["messages"]
    return [CHAT.parse_entry(json.dumps(message).encode()) for message in messages]


def _measure(session: Sequence[TranscriptEntry], fold: Fold) -> list[Survival]:
    pieces = _cut(session)
    pieces[0], planted = _plant(pieces[0])
    counted: dict[str, int] = {}
    told, survivals = NOTHING_TOLD, []
    for at, piece in enumerate(pieces[: _PIECES - 1], start=1):
        for fact, times in count_facts(piece).items():
            counted[fact] = counted.get(fact, 0) + times
        told = fold(piece, told, _CAP_CHARS)
        if at in _SHOWN:
            top = sorted(counted, key=lambda fact: -counted[fact])[:_TOP]
            shares = (find_share(told.spelled_out, facts) for facts in (list(counted), top, planted))
            survivals.append(Survival(*shares))
    return survivals


def count_facts(piece: Sequence[TranscriptEntry]) -> dict[str, int]:
    """Facts of several messages, or of the newest ones, and the number of messages that mention them."""
    newest_from = len(piece) - max(1, len(piece) // _NEWEST_PART)
    counts: Counter[str] = Counter()
    newest: set[str] = set()
    for position, entry in enumerate(piece):
        texts = [entry.text, *(arguments.replace("\\n", "\n") for _, arguments in entry.calls)]
        facts = {fact for text in texts for fact in find_facts(text) if not is_secret(fact)}
        counts.update(facts)
        newest |= facts if position >= newest_from else set()
    return {fact: times for fact, times in counts.items() if times > 1 or fact in newest}


def _cut(session: Sequence[TranscriptEntry]) -> list[list[TranscriptEntry]]:
    """Pieces of about equal length. A tool result stays with its call."""
    starts = [0]
    for piece in range(1, _PIECES):
        start = max(starts[-1], len(session) * piece // _PIECES)
        while start < len(session) and session[start].is_result:
            start += 1
        starts.append(start)
    return [list(session[start:end]) for start, end in zip(starts, [*starts[1:], len(session)], strict=True)]


def _plant(piece: Sequence[TranscriptEntry]) -> tuple[list[TranscriptEntry], list[str]]:
    """Adds facts to three messages of the piece."""
    facts = [
        "src/ledger/rounding_rules.py",
        "/srv/exports/quarterly/totals.csv",
        "https://issues.example.net/browse/LEDGER-482",
        "round_half_even",
        "LedgerLockedError",
        "E4711",
    ]
    said = f"See {facts[0]}, {facts[1]} and {facts[2]}: `{facts[3]}` raises {facts[4]} with {facts[5]}."
    places = {len(piece) * third // 3 for third in range(3)} | {0}
    planted = [
        replace(entry, text=f"{entry.text}\n{said}") if at in places else entry
        for at, entry in enumerate(piece)
    ]
    return planted, facts


def find_share(summary: str, facts: Sequence[str]) -> float:
    return sum(fact in summary for fact in facts) / len(facts) if facts else 1.0


def _mean(measured: Sequence[Sequence[Survival]]) -> list[Survival]:
    columns = zip(*measured, strict=True)
    return [
        Survival(
            *(
                sum(getattr(survival, kind) for survival in column) / len(column)
                for kind in ("counted", "top", "planted")
            )
        )
        for column in columns
    ]


def with_list(summarize: Fold, share: float) -> Fold:
    """The list takes its share of the size of the summary."""

    def fold(
        piece: Sequence[TranscriptEntry], earlier: Told, cap_chars: int, shown: Sequence[TranscriptEntry] = ()
    ) -> Told:
        room = int(cap_chars * share)
        summary = summarize(piece, earlier, cap_chars - room).summary
        history = FoldedHistory(_make_messages(piece), piece, earlier, shown)
        return Told(summary, make_lists(summary, history, room))

    return fold


def extract(
    piece: Sequence[TranscriptEntry], earlier: Told, cap_chars: int, shown: Sequence[TranscriptEntry] = ()
) -> Told:
    """Half is the beginning of the earlier summary, half the first words of each message."""
    before = _take_lines(earlier.text.splitlines(), cap_chars // 2)
    room = cap_chars - len(before)
    texts = [entry.text or " ".join(arguments for _, arguments in entry.calls) for entry in piece]
    each = max(80, room // max(1, len(texts)))
    said = _take_lines([" ".join(text.split())[:each] for text in texts], room)
    return Told(f"{before}\n{said}".strip())


def lose(
    piece: Sequence[TranscriptEntry], earlier: Told, cap_chars: int, shown: Sequence[TranscriptEntry] = ()
) -> Told:
    """As `extract`, but two of three facts are replaced by `it`."""
    text = extract(piece, earlier, cap_chars).summary
    for fact in sorted(find_facts(text), key=len, reverse=True):
        if zlib.crc32(f"{len(earlier.text)} {fact}".encode()) % _KEPT_OF:
            text = text.replace(fact, "it")
    return Told(text)


def _make_messages(piece: Sequence[TranscriptEntry]) -> list[Message]:
    """The ids of calls and results, in the order in which they follow each other."""
    messages, waiting = [], list[str]()
    for position, entry in enumerate(piece):
        calls = tuple(Call(f"{position}:{at}", tool) for at, (tool, _) in enumerate(entry.calls))
        results = (waiting.pop(0),) if entry.is_result and waiting else ()
        waiting += [call.id for call in calls]
        role: Role = "tool" if entry.is_result else "assistant" if entry.role == "assistant" else "user"
        messages.append(Message(role, b"", b"", 0, calls, results))
    return messages


def _digest(
    piece: Sequence[TranscriptEntry], earlier: Told, cap_chars: int, shown: Sequence[TranscriptEntry] = ()
) -> Told:
    """As where a client no longer sends what an earlier digest stands for."""
    return make_digest(FoldedHistory(_make_messages(piece), piece, earlier, shown), cap_chars)


def _take_lines(lines: Sequence[str], room: int) -> str:
    taken = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        taken.append(line)
    return "\n".join(taken)
