"""Recognizes upstreams that leave out a part of the prompt without an error, as Ollama does.

Such an upstream's window may be far smaller than known; the prompt that it reports then stays at that size
however much is sent. Precision comes first: if the numbers have another explanation (only uncached tokens are
counted, pictures cost less than our fixed figure), that one is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.history.view import make_view, measure, measure_range
from gateway.core.sizing.estimate import CALIBRATED_MARGIN, Calibration, Sizes

# Usage below this part of what was certainly sent cannot be explained by a mixture of contents.
_FAR_BELOW_SHARE: Final = 0.6
_MIN_MISSING_TOKENS: Final = 2_000
# No tokenizer makes fewer true tokens of what was added (`estimate`, plausible ratios).
_MIN_GROWTH_RATIO: Final = 0.2
_MIN_ADDED_TOKENS: Final = 500
# Without a calibration: the prompt is the same again, apart from a message at the edge, although this much
# was added. A smaller addition may be offset by reasoning that upstream dropped from the history meanwhile.
_SAME_SHARE: Final = 0.02
_MUCH_ADDED_TOKENS: Final = 1_000
_MUCH_ADDED_SHARE: Final = 0.1
# Usage without cached tokens is about what was added and one cache block; the largest blocks are 1,024
# tokens.
_CACHE_BLOCK_TOKENS: Final = 1_024
# If the cache began late, the uncached part was at most a thirtieth of the prompt before (recorded sessions).
_UNCACHED_SHARE: Final = 0.1
# Real sessions have 2.8 bytes per token, English prose four to five.
_MAX_BYTES_PER_TOKEN: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What usage is compared with, in tokens."""

    # The prompt that this conversation's last response reported, with the same pivot and batches.
    before: int
    # Raw tokens added since.
    added: int
    # Calibrated tokens of everything sent; None before the calibration is settled.
    whole: int | None


def expect_usage(
    conversation: Conversation,
    sizes: Sizes,
    pivot: Pivot | None,
    batches: Sequence[Batch],
    before: Head | None,
    calibration: Calibration,
) -> Expected | None:
    """For a request sent with this pivot and these batches. `before`: the nearest head of its scope.

    None if usage cannot be judged: there is nothing to compare it with, the view changed, or it has media.
    """
    if before is None or not before.prompt_tokens or not had_active(before, pivot, batches):
        return None
    if any(message.has_media for message in (*conversation.leading, *conversation.messages)):
        return None
    view, end = make_view(pivot, batches), len(conversation.messages)
    raw = measure(view, sizes.messages, sizes.environment, end)
    return Expected(
        before=before.prompt_tokens,
        added=measure_range(view, sizes.messages, max(before.length, view.start), end),
        whole=int(raw * calibration.ratio) if calibration.is_settled else None,
    )


def is_suspicious(prompt_tokens: int, before: int, added_bytes: int) -> bool:
    """Whether this usage needs a closer look, because it grew less than what was added since the last one."""
    return prompt_tokens - before < added_bytes / _MAX_BYTES_PER_TOKEN


def is_truncated(prompt_tokens: int, expected: Expected) -> bool:
    """Whether this usage shows that a part of the prompt was left out. The cases in order:

    1. no, if it may be the uncached part alone; 2. no, if it grew with what was added;
    3. yes, if it lies below what was certainly sent, or if it is the same again although much was added.
    """
    uncached = max(2 * expected.added + _CACHE_BLOCK_TOKENS, _UNCACHED_SHARE * expected.before)
    if prompt_tokens <= uncached:
        return False
    growth = prompt_tokens - expected.before
    if growth >= _MIN_GROWTH_RATIO * expected.added:
        return False
    return _is_missing(prompt_tokens, expected) or _is_same(growth, expected)


def _is_missing(prompt_tokens: int, expected: Expected) -> bool:
    """Far below what was sent, or below it by a margin while much was added."""
    certain = (expected.whole or 0) * (1 - CALIBRATED_MARGIN)
    if certain - prompt_tokens < _MIN_MISSING_TOKENS:
        return False
    return prompt_tokens < _FAR_BELOW_SHARE * certain or expected.added >= _MIN_ADDED_TOKENS


def _is_same(growth: int, expected: Expected) -> bool:
    is_much = expected.added >= max(_MUCH_ADDED_TOKENS, _MUCH_ADDED_SHARE * expected.before)
    return is_much and abs(growth) <= _SAME_SHARE * expected.before


def had_active(head: Head, pivot: Pivot | None, batches: Sequence[Batch]) -> bool:
    """Whether the head was sent with the same pivot and batches; otherwise its usage is not comparable."""
    if head.pivot != (pivot.key if pivot is not None else None) or len(head.batches) != len(batches):
        return False
    if pivot is not None and head.pivot_version != pivot.version:
        return False
    return not batches or head.batches == tuple(batch.key for batch in batches)
