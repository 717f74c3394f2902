"""How much of what the next replies need is in the requests that a schedule sends.

Each compaction of a played conversation is done again by the functions that stand for a model in
`bench.facts`, with the list of facts that the gateway adds. A reply needs the names in its texts and calls
that were said before. Visible are the opening, the summary, and the messages that are sent, without what is
pruned of them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bench.economics.workloads import Workload
from bench.facts import Fold, find_share, with_list
from gateway.core.digest.facts import find_names
from gateway.core.history.lists import NOTHING_TOLD, Told
from gateway.core.history.transcript import TranscriptEntry
from gateway.replay.results import RequestRun
from gateway.wire.registry import CHAT

_REPLIES: Final = 30
# Shares of fewer names say nothing.
_FEWEST_NAMES: Final = 5
# Of a conversation, so many requests are looked at.
_POINTS: Final = 40
_LIST_SHARE: Final = 0.2
_CHARS_PER_TOKEN: Final = 3
_MOST_SUMMARY_TOKENS: Final = 4_096
_SUMMARY_SHARE: Final = 0.1


class Shares(NamedTuple):
    """Of names that the next replies need and that were said before: all that are visible, and the paths.

    folded: of the names that were said in messages which a summary stands for. None: there are too few.
    """

    names: float
    paths: float | None
    folded: float | None


@dataclass(frozen=True, slots=True)
class _Sent:
    """One request. end: of the messages that it came with."""

    covers: int
    end: int
    told: Told
    pruned: frozenset[int]


def measure_visible(workload: Workload, runs: Sequence[RequestRun], fold: Fold) -> list[Shares]:
    """At requests that are the same whatever the schedule: from where half of the window would be full."""
    said = [message for message in workload.messages if message["role"] != "system"]
    entries = [CHAT.parse_entry(json.dumps(message).encode()) for message in said]
    opening = next((at for at, entry in enumerate(entries) if entry.role == "assistant"), len(entries))
    texts, names = list(map(_say, entries)), [_list_names(entry) for entry in entries]
    full = [at for at, run in enumerate(runs) if 2 * run.received > (run.hard or 0)]
    chosen = set(full[:: max(1, len(full) // _POINTS)])
    cap_chars = _CHARS_PER_TOKEN * min(_MOST_SUMMARY_TOKENS, int(_SUMMARY_SHARE * workload.window))
    found = []
    for at, sent in enumerate(_follow(entries, opening, runs, with_list(fold, _LIST_SHARE), cap_chars)):
        if at in chosen:
            shares = _measure(entries, texts, names, opening, sent)
            found += [shares] if shares is not None else []
    return found


def _follow(
    entries: Sequence[TranscriptEntry], opening: int, runs: Sequence[RequestRun], fold: Fold, cap_chars: int
) -> Iterator[_Sent]:
    covers, told, pruned = 0, NOTHING_TOLD, frozenset[int]()
    for run in runs:
        if run.covers > covers:
            piece = entries[max(covers, opening) : run.covers]
            stays = entries[run.covers : run.messages]
            told, covers = fold(piece, told, cap_chars, stays), run.covers
        pruned |= frozenset(run.pruned)
        yield _Sent(covers, run.messages, told, pruned)


def _measure(
    entries: Sequence[TranscriptEntry],
    texts: Sequence[str],
    names: Sequence[frozenset[str]],
    opening: int,
    sent: _Sent,
) -> Shares | None:
    replies = [at for at in range(sent.end, len(entries)) if entries[at].role == "assistant"][:_REPLIES]
    wanted = frozenset[str]().union(*(names[at] for at in replies))
    known = wanted & frozenset[str]().union(*names[opening : sent.end])
    if len(known) < _FEWEST_NAMES:
        return None
    kept = [
        texts[at]
        for at in (*range(opening), *range(max(opening, sent.covers), sent.end))
        if at not in sent.pruned
    ]
    visible = "\n".join([sent.told.spelled_out, *kept])
    folded = known & frozenset[str]().union(*names[opening : sent.covers])
    return Shares(
        find_share(visible, [*known]),
        _share(visible, [name for name in known if "/" in name]),
        _share(visible, [*folded]),
    )


def _share(visible: str, wanted: Sequence[str]) -> float | None:
    return find_share(visible, wanted) if len(wanted) >= _FEWEST_NAMES else None


def _say(entry: TranscriptEntry) -> str:
    return "\n".join([entry.text, *(f"{tool}\n{_unescape(arguments)}" for tool, arguments in entry.calls)])


def _list_names(entry: TranscriptEntry) -> frozenset[str]:
    return frozenset(find_names(_say(entry)))


def _unescape(arguments: str) -> str:
    return arguments.replace("\\n", "\n").replace('\\"', '"')


def mean_of(shares: Sequence[Shares], kind: str) -> float:
    """0.0 if no request has enough of them."""
    values = [value for each in shares if (value := getattr(each, kind)) is not None]
    return sum(values) / len(values) if values else 0.0
