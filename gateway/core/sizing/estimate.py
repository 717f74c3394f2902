"""How many tokens will upstream count? True usage of the past plus a calibrated estimate of what is new.

Knows no tokenizer: raw sizes come in, calibrated tokens go out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.history.head import Head
from gateway.core.history.message import Message
from gateway.core.history.view import Size, View
from gateway.core.policy import Estimator

# What one message costs beyond its bytes on the most wasteful chat template we know of.
_MESSAGE_OVERHEAD_TOKENS = 16
# Ratios outside are mistakes (a summary of usage, a proxy's own numbers), not tokenizers.
_SMALLEST_RATIO, _LARGEST_RATIO = 0.2, 8.0
# The same for a whole prompt: less than half of our count is a prompt of which a part was left out.
_SMALLEST_SAMPLE = 0.5
# A ratio is the middle one of this many: four wild samples in a row do not move it, five are a new tokenizer.
_RECENT_SAMPLES = 9
# From three samples on a wild one cannot be the middle one.
_ENOUGH_SAMPLES = 3
# In less than this a chat template's own words weigh more than the text.
_LEAST_SAMPLE_TOKENS = 300
# How wrong an estimate may be. Before the first usage the tokenizer is unknown: real ones count up to 1.7
# times what ours does; after it, one kind of content still differs from another by a quarter (DECISIONS,
# estimates).
UNCALIBRATED_MARGIN = 0.7
CALIBRATED_MARGIN = 0.25
# What weighed messages add up to, once past answers have told their sizes.
WEIGHED_MARGIN = 0.05


class Meter(NamedTuple):
    """Between whom a ratio holds: who counts the true tokens, and by which rule we count the raw ones."""

    upstream: str
    model: str
    estimator: Estimator


@dataclass(frozen=True, slots=True)
class Calibration:
    """True tokens per raw token by one meter, from `samples` answers.

    recent: the ratios of the newest of them, the oldest first; `ratio` is the middle one.
    """

    ratio: float = 1.0
    samples: int = 0
    recent: tuple[float, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Has it seen enough for one wild sample to be recognised?"""
        return self.samples >= _ENOUGH_SAMPLES

    def wants_sample(self, true_tokens: int) -> bool:
        """Is a prompt of this size worth being counted, although no decision needs it?"""
        return not self.is_settled and true_tokens >= _LEAST_SAMPLE_TOKENS

    def with_sample(self, true_tokens: int, raw_tokens: int) -> "Calibration":
        """The middle of the newest ratios; of two middle ones the nearer to what held before, so that one
        wild sample among good ones never counts. Samples no tokenizer makes are ignored, small ones too.
        """
        if true_tokens < _LEAST_SAMPLE_TOKENS or raw_tokens <= 0:
            return self
        ratio = true_tokens / raw_tokens
        if not _SMALLEST_SAMPLE <= ratio <= _LARGEST_RATIO:
            return self
        before = self.recent or ((self.ratio,) if self.samples else ())
        recent = (*before, ratio)[-_RECENT_SAMPLES:]
        return Calibration(_find_middle(recent, self.ratio), self.samples + 1, recent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Raw sizes of one request: of each message, and of the leading block with the tools."""

    messages: Sequence[Size]
    environment: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known of this conversation's true size.

    head: nearest head of the same scope with usage, or None. head_view: what was in force for it.
    past: all such heads on the chain that are at hand, the oldest first.
    """

    head: Head | None
    head_view: View
    calibration: Calibration
    past: Sequence[Head] = ()

    @property
    def is_calibrated(self) -> bool:
        """Has this model at this upstream told any usage yet?"""
        return self.head is not None or self.calibration.samples > 0


class Estimate(NamedTuple):
    """Calibrated tokens, and how much of them may be wrong (`unsure`, tokens)."""

    tokens: int
    unsure: int


def upper_bound_tokens(added: Sequence[Message], head: Head | None, body_bytes: int) -> int | None:
    """No tokenizer makes more tokens than bytes: enough to know that a small step stays below a line.

    added: messages behind the head, which must be of the same scope, and what it had in force still is;
    without one all messages, and the whole body counts. None where there is no such bound: a picture's link
    is short, the picture is not.
    """
    added_bytes = 0
    for message in added:
        if message.has_media:
            return None
        added_bytes += message.size_bytes
    known = head.total_tokens + added_bytes if head is not None else body_bytes
    return known + _MESSAGE_OVERHEAD_TOKENS * len(added)


def _find_middle(ratios: Sequence[float], before: float) -> float:
    ordered = sorted(ratios)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(low, high, key=lambda ratio: abs(ratio - before))


def is_plausible_ratio(ratio: float) -> bool:
    """Could a tokenizer differ so much from ours?"""
    return _SMALLEST_RATIO <= ratio <= _LARGEST_RATIO
