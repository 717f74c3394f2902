"""What each message of a conversation costs in true tokens, as upstream counts them.

The usage of past responses is spread over the messages that were new to each of them. Such a difference is
called a step. Whole prompts also contain text that upstream adds itself, and single steps may contain hidden
reasoning and pictures. So the ratio of true to raw tokens is the median of many steps, weighted by how
similar their content is. A difference says nothing if the client may have shortened messages in between.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from math import log, sqrt
from operator import attrgetter
from typing import Final

from gateway.core.history.conversation import Conversation, find_reply_end
from gateway.core.history.head import Head, is_sent_alike
from gateway.core.history.view import Size, View, is_sent, measure, measure_pivot, shown_tokens
from gateway.core.sizing.estimate import (
    CALIBRATED_MARGIN,
    STEPS_MARGIN,
    UNCALIBRATED_MARGIN,
    Estimate,
    Known,
    Sizes,
    is_plausible_ratio,
)

# In a smaller step the overhead of messages and a short thought cost more than the words.
_MIN_STEP_TOKENS: Final = 500
# Newer steps tell the same as older ones, so this many are enough.
_MAX_STEPS: Final = 32
# Two files of source code differ by about this much in the logarithm of their density.
_SIMILAR_DENSITY: Final = 0.1
# A first prompt of more than twice what its messages cost contains text that is not in the request body.
_HIDDEN_RATIO: Final = 2.0
# A reply that cost more than this multiple of our count was mostly hidden reasoning.
_MAX_REPLY_RATIO: Final = 3.0

_get_ratio = attrgetter("ratio")


@dataclass(frozen=True, slots=True)
class Step:
    """The messages at `positions` as upstream counted them (`true_tokens`) and as we do (`raw`)."""

    positions: slice
    true_tokens: int
    raw: Size

    @property
    def ratio(self) -> float:
        return self.true_tokens / max(self.raw.tokens, 1)


@dataclass(frozen=True, slots=True)
class CalibratedSizes:
    """True tokens, as far as they are known."""

    sizes: Sizes
    messages: Sequence[float]
    # The leading block with the tools.
    environment: float
    # True tokens per raw token, if nothing better is known.
    ratio: float
    # Positions that only a whole prompt has told of, together with the environment.
    untold: Sequence[int] = ()

    def shown(self, view: View, start: int, end: int) -> float:
        """The size of the messages `start:end` as they are sent."""
        if not view.marks:
            return sum(self.messages[start:end])
        return sum(self._shown_at(view, position) for position in range(start, end))

    def total(self, view: View) -> float:
        """The size of everything that is sent."""
        end = len(self.messages)
        pivot, recalled = view.pivot, self.recalled(view)
        if pivot is None:
            return self.environment + recalled + self.shown(view, 0, end)
        inserted = measure_pivot(view, self.sizes.messages) * self.ratio
        return self.environment + recalled + inserted + self.shown(view, pivot.covers, end)

    def recalled(self, view: View) -> float:
        """The size of all recalls."""
        return sum(view.inserted.values()) * self.ratio if view.inserted else 0.0

    def left_out(self, before: View, view: View) -> float:
        """How much of what is untold leaves the prompt from one view to the other."""
        shown = [(self._sent_at(before, position), self._sent_at(view, position)) for position in self.untold]
        return sum(max(0.0, then - now) for then, now in shown)

    def _sent_at(self, view: View, position: int) -> float:
        return self._shown_at(view, position) if is_sent(view.pivot, position) else 0.0

    def _shown_at(self, view: View, position: int) -> float:
        size, mark = self.sizes.messages[position], view.marks.get(position)
        if mark is None:
            return self.messages[position]
        return self.messages[position] * shown_tokens(size, mark) / max(size.tokens, 1)


def calibrate_sizes(conversation: Conversation, sizes: Sizes, known: Known) -> CalibratedSizes:
    """`known.past`: heads of the same scope with usage, the oldest first."""
    changed = conversation.find_changed()
    steps = find_steps(sizes, known.past, changed)
    first = find_first(sizes, known, changed)
    # The newest steps that are large enough to predict others.
    informative = [
        step
        for step in ([first, *steps] if first else steps)
        if step.raw.tokens >= _MIN_STEP_TOKENS and is_plausible_ratio(step.ratio)
    ][-_MAX_STEPS:]
    ratio = choose_ratio(informative) if informative else _choose_whole_ratio(sizes, known, changed)
    tokens = [size.tokens * ratio for size in sizes.messages]
    if first is not None and _is_of_known_parts(first, ratio):
        _spread(tokens, sizes, first)
    # Of messages that are in both, a step tells more than a whole prompt.
    for step in steps:
        _spread(tokens, sizes, step)
    if known.head is not None and informative:
        added = sizes.messages[known.head.length :]
        ratios = choose_ratios(informative, added)
        tokens[known.head.length :] = [size.tokens * own for size, own in zip(added, ratios, strict=True)]
    _calibrate_reply(tokens, conversation, sizes, known.head)
    environment = _calibrate_environment(sizes, first, ratio)
    return CalibratedSizes(sizes, tokens, environment, ratio, _list_untold(first, steps))


def estimate_view(
    conversation: Conversation, calibrated: CalibratedSizes, known: Known, view: View
) -> Estimate:
    """What upstream will count for this view: known usage plus an estimate of what was added since."""
    head = known.head
    end = len(conversation.messages)
    if head is None:
        total = calibrated.total(view)
        margin = CALIBRATED_MARGIN if known.is_calibrated else UNCALIBRATED_MARGIN
        return Estimate(int(total), int(total * margin))
    added = calibrated.shown(view, max(head.length, view.start), end)
    unsure = int(added * CALIBRATED_MARGIN)
    before = known.head_view
    if view == before:
        return Estimate(head.prompt_tokens + int(added), unsure)
    if view.inserted != before.inserted and view._replace(inserted=before.inserted) == before:
        recalled = calibrated.recalled(view) - calibrated.recalled(before)
        return Estimate(
            head.prompt_tokens + int(added + recalled), unsure + int(abs(recalled) * CALIBRATED_MARGIN)
        )
    total = calibrated.total(view)
    # Usage has shown that prompt, but not how much of it this is.
    left_out = calibrated.left_out(before, view)
    return Estimate(int(total), unsure + int(max(total * STEPS_MARGIN, left_out * CALIBRATED_MARGIN)))


def find_steps(sizes: Sizes, past: Sequence[Head], changed: Sequence[int] = ()) -> list[Step]:
    """The differences between responses with the same pivot and batches: the full messages between them.

    changed: positions of messages that are not what upstream counted.
    """
    steps = []
    for before, after in pairwise(past):
        is_same = is_sent_alike(before, after)
        is_known = not _has_any(changed, before.covers, after.length)
        if is_same and is_known and before.length < after.length:
            positions = slice(before.length, after.length)
            true_tokens = after.prompt_tokens - before.prompt_tokens
            steps.append(Step(positions, true_tokens, _add_up(sizes, positions)))
    return [step for step in steps if step.raw.tokens > 0 and is_plausible_ratio(step.ratio)]


def _has_any(positions: Sequence[int], start: int, end: int) -> bool:
    """Whether any of the positions, in ascending order, is in a range."""
    return bisect_left(positions, start) < bisect_left(positions, end)


def find_first(sizes: Sizes, known: Known, changed: Sequence[int] = ()) -> Step | None:
    """A response whose whole prompt is known: to the first one of a conversation everything was new.

    Behind a restart memory has the newest responses alone. The smaller of two prompts tells most of the
    environment: that of the oldest response, or of the oldest that was sent like the nearest one. None if
    neither is known, or if the client has changed what it sent then.
    """
    found = []
    for head, view in _find_whole(known):
        if not _has_any(changed, view.start, head.length):
            raw = measure(view, sizes.messages, sizes.environment, head.length)
            positions = slice(view.start, head.length)
            found.append(Step(positions, head.prompt_tokens, Size(raw, _add_up(sizes, positions).chars)))
    return min(found, key=lambda step: step.raw.tokens, default=None)


def _find_whole(known: Known) -> Iterator[tuple[Head, View]]:
    """Responses of which it is known with what they were sent."""
    past = known.past
    if past and past[0].pivot is None and not past[0].batches and not past[0].recalls:
        yield past[0], View(None, {})
    *_, oldest = (None, *takewhile(lambda head: is_sent_alike(head, past[-1]), reversed(past)))
    if oldest is not None:
        yield oldest, known.head_view


def _list_untold(first: Step | None, steps: Sequence[Step]) -> list[int]:
    """The positions of the first whole prompt that are in no step. The error of a small one is small."""
    if first is None or first.raw.tokens < _MIN_STEP_TOKENS:
        return []
    told = {at for step in steps for at in range(step.positions.start, step.positions.stop)}
    return [at for at in range(first.positions.start, first.positions.stop) if at not in told]


def choose_ratio(informative: Sequence[Step]) -> float:
    """True tokens per raw token: the weighted median of at least one step.

    The weight is the square root of a step's size. A first prompt of 20,000 tokens, most of it tools, says
    more than a step of 500, but not forty times as much.
    """
    ordered = sorted(informative, key=_get_ratio)
    return _find_median(ordered, [sqrt(step.raw.tokens) for step in ordered])


def choose_ratios(informative: Sequence[Step], sizes: Sequence[Size]) -> list[float]:
    """The same for messages of these sizes; a step of similar content has a larger weight."""
    ordered = sorted(informative, key=_get_ratio)
    known = [(sqrt(step.raw.tokens), _density(step.raw)) for step in ordered]
    ratios = []
    for size in sizes:
        own = _density(size)
        # The factor is 1 for the same density, a half for a difference of _SIMILAR_DENSITY, and goes to 0.
        weights = [root / (1 + ((density - own) / _SIMILAR_DENSITY) ** 2) for root, density in known]
        ratios.append(_find_median(ordered, weights))
    return ratios


def _find_median(ordered: Sequence[Step], weights: Sequence[float]) -> float:
    sums = list(accumulate(weights))
    return ordered[bisect_left(sums, sums[-1] / 2)].ratio


def _density(size: Size) -> float:
    """Tells kinds of content apart: tokens per character are 0.7 in Chinese, 0.35 in JSON, 0.22 in prose."""
    return log((size.tokens + 1) / (size.chars + 1))


def _add_up(sizes: Sizes, positions: slice) -> Size:
    shown = sizes.messages[positions]
    return Size(sum(size.tokens for size in shown), sum(size.chars for size in shown))


def _choose_whole_ratio(sizes: Sizes, known: Known, changed: Sequence[int]) -> float:
    """The ratio of the last prompt as a whole, or else the calibration's."""
    head = known.head
    if head is None or _has_any(changed, known.head_view.start, head.length):
        return known.calibration.ratio
    raw = measure(known.head_view, sizes.messages, sizes.environment, head.length)
    ratio = head.prompt_tokens / max(raw, 1)
    return ratio if is_plausible_ratio(ratio) else known.calibration.ratio


def _is_of_known_parts(first: Step, ratio: float) -> bool:
    """Whether most of a whole prompt was in the request body."""
    return is_plausible_ratio(first.ratio) and first.ratio <= _HIDDEN_RATIO * ratio


def _calibrate_environment(sizes: Sizes, first: Step | None, ratio: float) -> float:
    """The environment in true tokens. The usage of the first prompt is spread over it and what was sent with
    it, unless most of that prompt is hidden from us.
    """
    if first is None:
        return sizes.environment * ratio
    if first.ratio > _HIDDEN_RATIO * ratio:
        return first.true_tokens - (first.raw.tokens - sizes.environment) * ratio
    return sizes.environment * (first.ratio if _is_of_known_parts(first, ratio) else ratio)


def _spread(tokens: list[float], sizes: Sizes, step: Step) -> None:
    tokens[step.positions] = [size.tokens * step.ratio for size in sizes.messages[step.positions]]


def _calibrate_reply(
    tokens: list[float], conversation: Conversation, sizes: Sizes, head: Head | None
) -> None:
    """The newest reply costs its output tokens, unless most of them were reasoning that is not sent back.

    A client may also send back more than the reply was (it was cut off, or edited). Then its own size counts.
    """
    if head is None:
        return
    end = find_reply_end(conversation, head.length)
    raw = sum(size.tokens for size in sizes.messages[head.length : end])
    counted = sum(tokens[head.length : end])
    if counted < head.output_tokens <= _MAX_REPLY_RATIO * raw:
        factor = head.output_tokens / counted
        tokens[head.length : end] = [each * factor for each in tokens[head.length : end]]
