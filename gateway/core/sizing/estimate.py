"""Values of an estimate: how many tokens upstream will count, from past usage and raw sizes.

Knows no tokenizer: the caller passes raw sizes. `calibrated_sizes` has the estimate itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.history.head import Head
from gateway.core.history.message import Message
from gateway.core.history.view import Size, View
from gateway.core.policy import Estimator

# What one message costs beyond its text in the most wasteful chat template that we know.
_MESSAGE_OVERHEAD_TOKENS = 16
# A ratio outside these is a mistake (usage of several requests, a proxy's own numbers), not a tokenizer.
_SMALLEST_RATIO, _LARGEST_RATIO = 0.2, 8.0
# For a whole prompt less than half of our count means that upstream left out a part of it.
_SMALLEST_SAMPLE = 0.5
# The ratio is the median of this many samples: four outliers in a row do not change it, five are a new
# tokenizer.
_RECENT_SAMPLES = 9
# From three samples on a single outlier is not the median.
_ENOUGH_SAMPLES = 3
# In a smaller prompt the chat template's own words cost more than the text.
_MIN_SAMPLE_TOKENS = 300
# How far off an estimate may be. Before the first usage the tokenizer is unknown: real ones count up to 1.7
# times as much as ours. After it, kinds of content still differ by a quarter (DECISIONS.md, core/sizing).
UNCALIBRATED_MARGIN = 0.7
CALIBRATED_MARGIN = 0.25
# How far off the sum of the messages may be, once usage has shown their sizes.
STEPS_MARGIN = 0.05


class Meter(NamedTuple):
    """What a ratio applies to: the model that counts true tokens, and the rule by which we count raw ones."""

    upstream: str
    model: str
    estimator: Estimator


@dataclass(frozen=True, slots=True)
class Calibration:
    """True tokens per raw token for one meter. A record."""

    # The median of `recent`.
    ratio: float = 1.0
    # The number of responses that it comes from.
    samples: int = 0
    # The ratios of the newest samples, the oldest first.
    recent: tuple[float, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether there are enough samples to recognize an outlier."""
        return self.samples >= _ENOUGH_SAMPLES

    def wants_sample(self, true_tokens: int) -> bool:
        """Whether a prompt of this size is worth counting although no decision needs it."""
        return not self.is_settled and true_tokens >= _MIN_SAMPLE_TOKENS

    def with_sample(self, true_tokens: int, raw_tokens: int) -> "Calibration":
        """The median of the newest ratios. Of two middle ones it is the one nearer to the ratio before, so
        that a single outlier never counts. Small and implausible samples are ignored.
        """
        if true_tokens < _MIN_SAMPLE_TOKENS or raw_tokens <= 0:
            return self
        ratio = true_tokens / raw_tokens
        if not _SMALLEST_SAMPLE <= ratio <= _LARGEST_RATIO:
            return self
        before = self.recent or ((self.ratio,) if self.samples else ())
        recent = (*before, ratio)[-_RECENT_SAMPLES:]
        return Calibration(_find_median(recent, self.ratio), self.samples + 1, recent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Raw sizes of one request: of each message, and of the leading block with the tools."""

    messages: Sequence[Size]
    environment: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known about this conversation's true size."""

    # The nearest head of the same scope with usage.
    head: Head | None
    # The view that was sent for that head.
    head_view: View
    calibration: Calibration
    # All available heads of that kind on the chain, the oldest first.
    past: Sequence[Head] = ()

    @property
    def is_calibrated(self) -> bool:
        """Whether this model at this upstream has reported usage yet."""
        return self.head is not None or self.calibration.samples > 0


class Estimate(NamedTuple):
    """Calibrated tokens, and by how many tokens the estimate may be off (`unsure`)."""

    tokens: int
    unsure: int


def upper_bound_tokens(added: Sequence[Message], head: Head | None, body_bytes: int) -> int | None:
    """An upper bound, which shows that a small step stays below a threshold: one token for each byte.

    added: the messages after the head, which must be of the same scope and view; without a head all messages,
    and the whole body counts. None if there is no bound: the link of a picture is short, the picture is not.
    """
    added_bytes = 0
    for message in added:
        if message.has_media:
            return None
        added_bytes += message.size_bytes
    known = head.total_tokens + added_bytes if head is not None else body_bytes
    return known + _MESSAGE_OVERHEAD_TOKENS * len(added)


def _find_median(ratios: Sequence[float], before: float) -> float:
    ordered = sorted(ratios)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(low, high, key=lambda ratio: abs(ratio - before))


def is_plausible_ratio(ratio: float) -> bool:
    """Whether a tokenizer could differ this much from ours."""
    return _SMALLEST_RATIO <= ratio <= _LARGEST_RATIO
