"""What a run cost: summary calls against the fewest possible, and how much of the prompts a cache can reuse.

Pure. Looks at what left for the upstream; sizes are true tokens of the toy.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.toy.agent import PLAIN, Session
from tests.toy.counting import TokenCounter, render_compact

Request = Mapping[str, object]
_SUMMARY_TOKENS = 1_500
_TAIL_RATIO, _TAIL_TOKENS = 0.15, 20_000
_BUDGET_RATIO = 1.5
_LEAST_OUTPUT_TOKENS = 1_024


def render_prompt(request: Request) -> bytes:
    """What a provider's cache sees: tools, then messages. The envelope (`max_tokens`, …) is no part of it."""
    messages = request.get("messages")
    parts = [request.get("tools"), *(messages if isinstance(messages, list) else ())]
    return "\n".join(map(render_compact, parts)).encode("utf-8", "surrogatepass")


def shared_bytes(before: bytes, after: bytes) -> int:
    """Length of the common beginning, by halving."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[:middle] == after[:middle] else (low, middle - 1)
    return low


def prefix_reuse(bodies: Sequence[bytes]) -> float:
    """Bytes shared with the previous outgoing request / bytes, over all requests of one conversation."""
    prompts = [render_prompt(json.loads(body)) for body in bodies]
    shared = sum(shared_bytes(before, after) for before, after in pairwise(prompts))
    return shared / max(1, sum(map(len, prompts)))


def prefix_breaks(bodies: Sequence[bytes]) -> list[int]:
    """Positions of the requests that do not begin with all messages of the one before."""
    arrays = [json.loads(body)["messages"] for body in bodies]
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


def measure(session: Session, counter: TokenCounter) -> Sizes:
    floor_tokens = counter.prompt(session.envelope(0, PLAIN))
    groups = tuple(counter.messages([turn.assistant, *turn.followers]) for turn in session.turns)
    return Sizes(floor_tokens, groups)


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


def fewest_summaries(session: Session, counter: TokenCounter, window: int) -> int:
    return simulate(measure(session, counter), window).summaries


def summary_budget(session: Session, counter: TokenCounter, window: int) -> int:
    """The most summary calls that the issue allows: 1.5 times the fewest, rounded up."""
    return simulate(measure(session, counter), window).budget


def smallest_window(session: Session, counter: TokenCounter) -> int:
    """Below this window no cut between turns can help: floor, summary, the largest group, 1,024 of output."""
    sizes = measure(session, counter)
    return sizes.floor_tokens + _SUMMARY_TOKENS + max(sizes.groups[:-1], default=0) + _LEAST_OUTPUT_TOKENS


def sent_with_opening(requests: Sequence[Request], session: Session) -> Iterator[bool]:
    """For each outgoing request: does it begin with the leading block and the opening, unchanged?"""
    expected = json.loads(render_compact(session.messages(0)))
    for request in requests:
        messages = request["messages"]
        yield isinstance(messages, list) and messages[: len(expected)] == expected
