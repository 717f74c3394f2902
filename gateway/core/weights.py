"""What does each message truly cost? The usage of past answers, spread over what they added.

One kind of content costs more than another: JSON inside JSON twice what the average of a conversation does.
Where two answers of one conversation told their prompts, the difference is what the messages between them
cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.conversation import Conversation, find_reply_end
from gateway.core.estimate import (
    CALIBRATED_MARGIN,
    UNCALIBRATED_MARGIN,
    WEIGHED_MARGIN,
    Estimate,
    Known,
    Sizes,
    is_plausible_ratio,
)
from gateway.core.head import Head
from gateway.core.steps import Step, choose_ratio, choose_ratios, find_first, find_steps, find_telling
from gateway.core.view import View, measure, shown_tokens

# A first prompt of more than twice what its messages cost holds words that are not in the body.
_HIDDEN_RATIO = 2.0
# A reply that cost more than this by our count was mostly hidden reasoning.
_MOST_REPLY_RATIO = 3.0


@dataclass(frozen=True, slots=True)
class Weights:
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


def weigh(conversation: Conversation, sizes: Sizes, known: Known) -> Weights:
    """`known.past`: heads of the same scope with usage, the oldest first."""
    steps = find_steps(sizes, known.past)
    first = find_first(conversation, sizes, known.past)
    telling = find_telling([first, *steps] if first else steps)
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
    return Weights(sizes, tokens, environment, ratio)


def estimate_view(conversation: Conversation, weights: Weights, known: Known, view: View) -> Estimate:
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
