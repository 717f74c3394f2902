"""The cost of a run: summary calls against the fewest possible, and the share of prompts that a cache can
reuse.

It reads the requests that reached the upstream. Sizes are counts of the toy.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.toy.agent import PLAIN, Session, Shape
from tests.toy.counting import TokenCounter, render_compact
from tests.toy.counting_messages import without_marks
from tests.toy.dialects import find_dialect
from tests.toy.memory import read_items

Request = Mapping[str, object]
_SUMMARY_TOKENS = 1_500
_TAIL_RATIO, _TAIL_TOKENS = 0.15, 20_000
_BUDGET_RATIO = 1.5
_MIN_OUTPUT_TOKENS = 1_024


def render_prompt(request: Request) -> bytes:
    """The part that a provider caches: tools, system prompt, messages. Other fields (`max_tokens`, …) and
    cache marks are left out.
    """
    leading = [request[name] for name in ("instructions", "system") if request.get(name) is not None]
    parts = map(without_marks, [request.get("tools"), *leading, *_read_messages(request)])
    return render_compact([*parts]).encode("utf-8", "surrogatepass")


def _read_messages(request: Request) -> list[object]:
    messages = request.get("messages")
    return list(messages) if isinstance(messages, list) else read_items(request)


def _read(body: bytes | Request) -> Request:
    return json.loads(body) if isinstance(body, bytes) else body


def shared_bytes(before: bytes, after: bytes) -> int:
    """Length of the common beginning, by halving."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[:middle] == after[:middle] else (low, middle - 1)
    return low


def prefix_reuse(bodies: Sequence[bytes | Request]) -> float:
    """Bytes shared with the previous outgoing request / bytes, over all requests of one conversation."""
    prompts = [render_prompt(_read(body)) for body in bodies]
    shared = sum(shared_bytes(before, after) for before, after in pairwise(prompts))
    return shared / max(1, sum(map(len, prompts)))


def prefix_breaks(bodies: Sequence[bytes | Request]) -> list[int]:
    """Positions of the requests that do not begin with all messages of the one before."""
    arrays = [[*map(without_marks, _read_messages(_read(body)))] for body in bodies]
    pairs = enumerate(pairwise(arrays), start=1)
    return [index for index, (before, after) in pairs if after[: len(before)] != before]


def hard_line(window: int) -> float:
    """The issue's line: three quarters of the window, from 100K up at least 36K below it."""
    return min(0.75 * window, window - 36_000) if window >= 100_000 else 0.75 * window


@dataclass(frozen=True)
class Sizes:
    """A session in tokens. A group is one turn with its results; request t holds the first t groups."""

    floor_tokens: int
    groups: tuple[int, ...]


def measure(session: Session, counter: TokenCounter, shape: Shape = PLAIN) -> Sizes:
    """Counts of the full prompts, also if the shape only refers to stored parts."""
    dialect = find_dialect(shape.dialect.path) or shape.dialect
    spelled = replace(shape, dialect=dialect)
    counts = [dialect.count(counter, session.envelope(t, spelled)) for t in range(len(session) + 1)]
    return Sizes(counts[0], tuple(after - before for before, after in pairwise(counts)))


@dataclass(frozen=True)
class Ideal:
    """The best that compacting at the hard line can do on one session."""

    summaries: int
    prompt_tokens: tuple[int, ...]
    shared_tokens: tuple[int, ...]

    @property
    def reuse(self) -> float:
        """Prefix reuse, as `prefix_reuse` but in tokens."""
        return sum(self.shared_tokens) / max(1, sum(self.prompt_tokens))

    @property
    def budget(self) -> int:
        return math.ceil(_BUDGET_RATIO * self.summaries)


def simulate(sizes: Sizes, window: int) -> Ideal:
    """Compact when a prompt is above the hard line; keep the floor, a summary and the tail's whole groups."""
    start, summaries = 0, 0
    prompts: list[int] = []
    shared: list[int] = []
    for turn in range(len(sizes.groups)):
        prompt = _prompt_tokens(sizes, start, turn)
        cut = _find_cut(sizes, turn, window) if prompt > hard_line(window) else start
        common = prompts[-1] if cut == start and prompts else sizes.floor_tokens
        summaries += cut > start
        start = max(cut, start)
        prompts.append(_prompt_tokens(sizes, start, turn))
        shared.append(common if turn else 0)
    return Ideal(summaries, tuple(prompts), tuple(shared))


def _prompt_tokens(sizes: Sizes, start: int, turn: int) -> int:
    """Request `turn` whose first `start` groups are folded."""
    return sizes.floor_tokens + (_SUMMARY_TOKENS if start else 0) + sum(sizes.groups[start:turn])


def _find_cut(sizes: Sizes, turn: int, window: int) -> int:
    """First group that stays: whole groups within the tail, at least the last, which is unanswered."""
    tail_tokens, cut = min(_TAIL_RATIO * window, _TAIL_TOKENS), max(0, turn - 1)
    while cut > 0 and sum(sizes.groups[cut - 1 : turn]) <= tail_tokens:
        cut -= 1
    return cut


def fewest_summaries(session: Session, counter: TokenCounter, window: int, shape: Shape = PLAIN) -> int:
    return simulate(measure(session, counter, shape), window).summaries


def summary_budget(session: Session, counter: TokenCounter, window: int, shape: Shape = PLAIN) -> int:
    """The most summary calls that the issue allows: 1.5 times the fewest, rounded up."""
    return simulate(measure(session, counter, shape), window).budget


def fewest_summaries_trimmed(
    session: Session, counter: TokenCounter, window: int, shape: Shape = PLAIN
) -> int:
    """The fewest for a client that drops a part of its history.

    None, if nothing that it sends is above the hard line. Otherwise as many as for its whole history: a
    summary has to stand for what it drops too, so that a later request continues where that summary ends.
    """
    sent = (shape.dialect.count(counter, session.envelope(turn, shape)) for turn in range(len(session)))
    if all(tokens <= hard_line(window) for tokens in sent):
        return 0
    return fewest_summaries(replace(session, trim=None), counter, window, shape)


def summary_budget_trimmed(session: Session, counter: TokenCounter, window: int, shape: Shape = PLAIN) -> int:
    """1.5 times the fewest and 2 more: recognizing a trimmed history may fail when the trimming begins."""
    return math.ceil(_BUDGET_RATIO * fewest_summaries_trimmed(session, counter, window, shape)) + 2


def sent_with_opening(requests: Sequence[Request], session: Session, shape: Shape = PLAIN) -> Iterator[bool]:
    """For each outgoing request: does it begin with the leading block and the opening, unchanged?"""
    dialect = shape.dialect
    expected = json.loads(render_compact(dialect.items(session.envelope(0, shape))))
    for request in requests:
        yield dialect.items(request)[: len(expected)] == expected
