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

from gateway.core.history.conversation import Conversation, find_reply_end
from gateway.core.history.head import Head
from gateway.core.history.view import Size, View, measure, shown_tokens
from gateway.core.sizing.estimate import (
    CALIBRATED_MARGIN,
    UNCALIBRATED_MARGIN,
    WEIGHED_MARGIN,
    Estimate,
    Known,
    Sizes,
    is_plausible_ratio,
)

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


def find_informative(steps: Sequence[Step]) -> list[Step]:
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


# JOINED: What does each message truly cost? The usage of past answers, spread over what they added.

# A first prompt of more than twice what its messages cost holds words that are not in the body.
_HIDDEN_RATIO = 2.0
# A reply that cost more than this by our count was mostly hidden reasoning.
_MOST_REPLY_RATIO = 3.0


@dataclass(frozen=True, slots=True)
class CalibratedSizes:
    """True tokens, as well as they are known. ratio: true per raw tokens where nothing better is."""

    sizes: Sizes
    messages: Sequence[float]
    environment: float
    ratio: float

    def shown(self, view: View, start: int, end: int) -> float:
        """The messages `start:end` as they are sent."""
        if not view.marks:
            return sum(self.messages[start:end])
        return sum(self._shown_at(view, position) for position in range(start, end))

    def total(self, view: View) -> float:
        """Everything that is sent."""
        end = len(self.messages)
        pivot = view.pivot
        if pivot is None:
            return self.environment + self.shown(view, 0, end)
        return (
            self.environment
            + (pivot.opening_tokens + pivot.tokens) * self.ratio
            + self.shown(view, pivot.covers, end)
        )

    def _shown_at(self, view: View, position: int) -> float:
        size, mark = self.sizes.messages[position], view.marks.get(position)
        if mark is None:
            return self.messages[position]
        return self.messages[position] * shown_tokens(size, mark) / max(size.tokens, 1)


def calibrate_sizes(conversation: Conversation, sizes: Sizes, known: Known) -> CalibratedSizes:
    """`known.past`: heads of the same scope with usage, the oldest first."""
    steps = find_steps(sizes, known.past)
    first = find_first(conversation, sizes, known.past)
    telling = find_informative([first, *steps] if first else steps)
    ratio = choose_ratio(telling) if telling else _choose_whole_ratio(conversation, sizes, known)
    tokens = [size.tokens * ratio for size in sizes.messages]
    for step in steps:
        _spread(tokens, sizes, step)
    if known.head is not None and telling:
        added = sizes.messages[known.head.length :]
        ratios = choose_ratios(telling, added)
        tokens[known.head.length :] = [size.tokens * own for size, own in zip(added, ratios, strict=True)]
    _weigh_reply(tokens, conversation, sizes, known.head)
    environment = _weigh_first(tokens, sizes, first, ratio)
    return CalibratedSizes(sizes, tokens, environment, ratio)


def estimate_view(conversation: Conversation, weights: CalibratedSizes, known: Known, view: View) -> Estimate:
    """What upstream will count for this view: true usage of the past, and an estimate of what was added."""
    head = known.head
    end = len(conversation.messages)
    if head is None:
        total = weights.total(view)
        margin = CALIBRATED_MARGIN if known.is_calibrated else UNCALIBRATED_MARGIN
        return Estimate(int(total), int(total * margin))
    added = weights.shown(view, max(head.length, view.start), end)
    unsure = int(added * CALIBRATED_MARGIN)
    if view == known.head_view:
        return Estimate(head.prompt_tokens + int(added), unsure)
    total = weights.total(view)
    return Estimate(int(total), unsure + int(total * WEIGHED_MARGIN))


def _choose_whole_ratio(conversation: Conversation, sizes: Sizes, known: Known) -> float:
    """That of the last prompt as a whole, else the calibration."""
    head = known.head
    if head is None:
        return known.calibration.ratio
    raw = measure(known.head_view, conversation, sizes.messages, sizes.environment, head.length)
    ratio = head.prompt_tokens / max(raw, 1)
    return ratio if is_plausible_ratio(ratio) else known.calibration.ratio


def _weigh_first(tokens: list[float], sizes: Sizes, first: Step | None, ratio: float) -> float:
    """The environment, in true tokens; what the first prompt told is spread over it and its messages, unless
    most of it is hidden from us.
    """
    if first is None:
        return sizes.environment * ratio
    if first.ratio > _HIDDEN_RATIO * ratio:
        return first.true_tokens - sum(tokens[first.places])
    if not is_plausible_ratio(first.ratio):
        return sizes.environment * ratio
    _spread(tokens, sizes, first)
    return sizes.environment * first.ratio


def _spread(tokens: list[float], sizes: Sizes, step: Step) -> None:
    tokens[step.places] = [size.tokens * step.ratio for size in sizes.messages[step.places]]


def _weigh_reply(tokens: list[float], conversation: Conversation, sizes: Sizes, head: Head | None) -> None:
    """The newest reply costs what it cost to write, unless most of that was thinking that does not come back.

    A client may also send back more than was said (it was cut off, or edited): then what it sends counts.
    """
    if head is None:
        return
    end = find_reply_end(conversation, head.length)
    raw = sum(size.tokens for size in sizes.messages[head.length : end])
    counted = sum(tokens[head.length : end])
    if counted < head.output_tokens <= _MOST_REPLY_RATIO * raw:
        more = head.output_tokens / counted
        tokens[head.length : end] = [each * more for each in tokens[head.length : end]]
