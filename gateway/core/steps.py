"""What did earlier steps of this conversation cost? One step: all that was new to one answer.

Whole prompts also hold what upstream puts there itself, and single steps may hold thoughts and pictures that
nobody else sees; so the middle of many steps decides, the more alike the content, the more it counts.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import log, sqrt
from operator import attrgetter

from gateway.core.conversation import Conversation
from gateway.core.estimate import Sizes, is_plausible_ratio
from gateway.core.head import Head
from gateway.core.view import Size, View, measure

# In a smaller step the frames of messages and a short thought weigh more than the words.
_LEAST_TOKENS = 500
# What older steps told, newer ones tell as well.
_MOST_STEPS = 32
# A tenth: as much as two files of source code differ.
_ALIKE = 0.1

_read_ratio = attrgetter("ratio")


@dataclass(frozen=True, slots=True)
class Step:
    """`true_tokens` is what upstream counted for the messages at `places`; `raw` what we did."""

    places: slice
    true_tokens: int
    raw: Size

    @property
    def ratio(self) -> float:
        return self.true_tokens / max(self.raw.tokens, 1)


def find_steps(sizes: Sizes, past: Sequence[Head]) -> list[Step]:
    """Two answers that saw the same in force: their difference is the messages between, sent in full."""
    steps = []
    for before, after in pairwise(past):
        if before.pivot == after.pivot and before.batches == after.batches and before.length < after.length:
            places = slice(before.length, after.length)
            steps.append(Step(places, after.prompt_tokens - before.prompt_tokens, _add_up(sizes, places)))
    return [step for step in steps if step.raw.tokens > 0 and is_plausible_ratio(step.ratio)]


def find_first(conversation: Conversation, sizes: Sizes, past: Sequence[Head]) -> Step | None:
    """The oldest answer: everything was new to it. None if something was in force for it already."""
    if not past or past[0].pivot is not None or past[0].batches:
        return None
    end = past[0].length
    raw = measure(View(None, {}), conversation, sizes.messages, sizes.environment, end)
    places = slice(0, end)
    return Step(places, past[0].prompt_tokens, Size(raw, _add_up(sizes, places).chars))


def find_telling(steps: Sequence[Step]) -> list[Step]:
    """The newest of those that are large enough to say something about others."""
    large = [step for step in steps if step.raw.tokens >= _LEAST_TOKENS and is_plausible_ratio(step.ratio)]
    return large[-_MOST_STEPS:]


def choose_ratio(telling: Sequence[Step]) -> float:
    """True per raw tokens: the middle of the steps, which are at least one.

    A step weighs by the root of its size: a first prompt of 20,000 tokens, most of it tools, tells more than
    a step of 500, but not forty times as much.
    """
    ordered = sorted(telling, key=_read_ratio)
    return _find_middle(ordered, [sqrt(step.raw.tokens) for step in ordered])


def choose_ratios(telling: Sequence[Step], sizes: Sequence[Size]) -> list[float]:
    """The same for messages of these sizes: the more alike a step, the more it weighs."""
    ordered = sorted(telling, key=_read_ratio)
    known = [(sqrt(step.raw.tokens), _density(step.raw)) for step in ordered]
    ratios = []
    for size in sizes:
        own = _density(size)
        # 1 for the same density, a half where they differ by _ALIKE, towards 0 beyond.
        weights = [root / (1 + ((density - own) / _ALIKE) ** 2) for root, density in known]
        ratios.append(_find_middle(ordered, weights))
    return ratios


def _find_middle(ordered: Sequence[Step], weights: Sequence[float]) -> float:
    sums = list(accumulate(weights))
    return ordered[bisect_left(sums, sums[-1] / 2)].ratio


def _density(size: Size) -> float:
    """What kind of content is it? A character of Chinese makes 0.7 tokens, of JSON 0.35, of prose 0.22."""
    return log((size.tokens + 1) / (size.chars + 1))


def _add_up(sizes: Sizes, places: slice) -> Size:
    shown = sizes.messages[places]
    return Size(sum(size.tokens for size in shown), sum(size.chars for size in shown))
