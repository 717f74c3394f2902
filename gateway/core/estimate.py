"""How many tokens will upstream count? True usage of the past plus a calibrated estimate of what is new.

Knows no tokenizer: raw sizes come in, calibrated tokens go out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.conversation import Conversation
from gateway.core.head import Head
from gateway.core.view import Size, View

# What one message costs beyond its bytes on the most wasteful chat template we know of.
_MESSAGE_OVERHEAD_TOKENS = 16
# Ratios outside are mistakes (a summary of usage, a proxy's own numbers), not tokenizers.
_SMALLEST_RATIO, _LARGEST_RATIO = 0.2, 8.0
# How wrong an estimate may be. Before the first usage the tokenizer is unknown: real ones count up to 1.7
# times what ours does; after it, one kind of content still differs from another by a quarter (DECISIONS,
# estimates).
UNCALIBRATED_MARGIN = 0.7
CALIBRATED_MARGIN = 0.25
# What weighed messages add up to, once past answers have told their sizes.
WEIGHED_MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Calibration:
    """True tokens per raw token at one (upstream, model), from `samples` answers."""

    ratio: float = 1.0
    samples: int = 0

    def with_sample(self, true_tokens: int, raw_tokens: int) -> "Calibration":
        """Moves a third of the way, at once for the first sample; samples no tokenizer makes are ignored."""
        if raw_tokens <= 0 or not is_plausible_ratio(true_tokens / raw_tokens):
            return self
        ratio = true_tokens / raw_tokens
        moved = ratio if not self.samples else self.ratio + (ratio - self.ratio) / 3
        return Calibration(moved, self.samples + 1)


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


@dataclass(frozen=True, slots=True)
class Estimate:
    """Calibrated tokens, and how much of them may be wrong (`unsure`, tokens)."""

    tokens: int
    unsure: int


def upper_bound_tokens(conversation: Conversation, head: Head | None, body_bytes: int) -> int | None:
    """No tokenizer makes more tokens than bytes: enough to know that a small step stays below a line.

    `head` must be of the same scope, and what it had in force still is; without one the whole body counts.
    None where there is no such bound: a picture's link is short, the picture is not.
    """
    added = conversation.messages[head.length if head else 0 :]
    if any(message.has_media for message in added):
        return None
    if head is None:
        return body_bytes + _MESSAGE_OVERHEAD_TOKENS * len(conversation.messages)
    return head.total_tokens + sum(message.size_bytes + _MESSAGE_OVERHEAD_TOKENS for message in added)


def is_plausible_ratio(ratio: float) -> bool:
    """Could a tokenizer differ so much from ours?"""
    return _SMALLEST_RATIO <= ratio <= _LARGEST_RATIO
