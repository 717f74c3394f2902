"""How many tokens will upstream count? True usage of the past plus a calibrated estimate of what is new.

Knows no tokenizer: raw sizes come in, calibrated tokens go out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.conversation import Conversation
from gateway.core.head import Head
from gateway.core.view import Size, View, measure, measure_range

# What one message costs beyond its bytes on the most wasteful chat template we know of.
_MESSAGE_OVERHEAD_TOKENS = 16
# Ratios outside are mistakes (a summary of usage, a proxy's own numbers), not tokenizers.
_SMALLEST_RATIO, _LARGEST_RATIO = 0.2, 8.0
# Before the first usage the tokenizer is unknown: real ones lie within this factor of ours (FACTS §4).
UNCALIBRATED_MARGIN = 0.7
CALIBRATED_MARGIN = 0.15


@dataclass(frozen=True, slots=True)
class Calibration:
    """True tokens per raw token at one (upstream, model), from `samples` answers."""

    ratio: float = 1.0
    samples: int = 0

    def with_sample(self, true_tokens: int, raw_tokens: int) -> "Calibration":
        """Moves a third of the way, at once for the first sample; samples no tokenizer makes are ignored."""
        if raw_tokens <= 0 or not _SMALLEST_RATIO <= true_tokens / raw_tokens <= _LARGEST_RATIO:
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
    """

    head: Head | None
    head_view: View
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class Estimate:
    """Calibrated tokens, and how much of them may be wrong (`unsure`, tokens)."""

    tokens: int
    unsure: int


def upper_bound_tokens(conversation: Conversation, head: Head | None, body_bytes: int) -> int:
    """No tokenizer makes more tokens than bytes: enough to know that a small step stays below a line.

    `head` must be of the same scope, and what it had in force still is; without one the whole body counts.
    """
    if head is None:
        return body_bytes + _MESSAGE_OVERHEAD_TOKENS * len(conversation.messages)
    added = conversation.messages[head.length :]
    return head.total_tokens + sum(message.size_bytes + _MESSAGE_OVERHEAD_TOKENS for message in added)


def choose_ratio(conversation: Conversation, sizes: Sizes, known: Known) -> float:
    """True per raw tokens: this conversation's own where its last answer told, else the calibration."""
    head = known.head
    if head is None:
        return known.calibration.ratio
    raw = measure(known.head_view, conversation, sizes.messages, sizes.environment, head.length)
    ratio = head.prompt_tokens / max(raw, 1)
    return ratio if _SMALLEST_RATIO <= ratio <= _LARGEST_RATIO else known.calibration.ratio


def estimate_view(conversation: Conversation, sizes: Sizes, known: Known, view: View) -> Estimate:
    """What upstream will count for this view."""
    head = known.head
    ratio = choose_ratio(conversation, sizes, known)
    end = len(conversation.messages)
    if head is None or view != known.head_view:
        raw = measure(view, conversation, sizes.messages, sizes.environment, end)
        is_calibrated = head is not None or known.calibration.samples > 0
        margin = CALIBRATED_MARGIN if is_calibrated else UNCALIBRATED_MARGIN
        return Estimate(int(raw * ratio), int(raw * ratio * margin))
    start, true = _after_reply(conversation, head)
    added = int(measure_range(view, sizes.messages, min(start, end), end) * ratio)
    return Estimate(true + added, int(added * CALIBRATED_MARGIN))


def _after_reply(conversation: Conversation, head: Head) -> tuple[int, int]:
    """Where the truly new messages begin, and the true tokens before them.

    The reply comes back as an assistant message, if the client kept it; its own tokens are known already.
    """
    at = head.length
    if at < len(conversation.messages) and conversation.messages[at].role == "assistant":
        return at + 1, head.total_tokens
    return at, head.prompt_tokens
