"""Sizes of a request: what is estimated and known of them, fixed figures for what is no text, and bytes and
pictures where they are scarcer than tokens. Also whether usage shows that a part of the prompt was left out.

Knows no tokenizer: the caller passes raw sizes. `calibrated_sizes` has the estimate itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.core.history.message import Message
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.history.view import Size, View, make_view, measure, measure_range
from gateway.core.limits.model_limits import Limits
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
# So many that one large tool output hardly changes the average.
_NEWEST_TURNS: Final = 24
# Fewer turns say little about an average, so those that are missing count as empty.
_FEWEST_TURNS: Final = 6
# Bytes and pictures are ignored below this share of their limit.
_NEAR_SHARE: Final = 0.5
# Stands for an unknown window; any number works, because only shares of it are used.
_STAND_IN_WINDOW_TOKENS: Final = 1_000_000
# Providers count pixels, seconds and pages, which the gateway does not decode; base64 never counts as text.
# The usage of the next response shows the true cost (`calibrated_sizes`).
Attachment = Literal["image", "audio", "file"]

ATTACHMENT_TOKENS: Final[dict[Attachment, int]] = {
    # OpenAI counts 765 for a square in high detail, Anthropic 1,365 for a screenshot of 1280 x 800.
    "image": 1_000,
    # One minute: OpenAI counts 10 tokens per second, Gemini 32.
    "audio": 1_200,
    # Three pages: Anthropic states 1,500 to 3,000 tokens for a page of a PDF, text and picture together.
    "file": 6_000,
}


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


def average_turn(conversation: Conversation, tokens: Sequence[float]) -> float:
    """The mean of the newest 24 turns after the opening, 0 without any. tokens: of each message."""
    messages = conversation.messages
    total, turns = 0.0, 0
    for position in range(len(messages) - 1, conversation.opening_end - 1, -1):
        total += tokens[position]
        if messages[position].role == "assistant" != (messages[position - 1].role if position else ""):
            turns += 1
            if turns == _NEWEST_TURNS:
                break
    return total / max(turns, _FEWEST_TURNS)


# Scaled sizes are exact, so there is nothing to calibrate.
_EXACT: Final = Known(head=None, head_view=View(None, {}), calibration=Calibration(1.0, 1))


@dataclass(frozen=True, slots=True)
class Payload:
    """The size of one request apart from its tokens. What is not in messages is leading block and tools."""

    body_bytes: int
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    sizes: Sizes
    known: Known
    limits: Limits


def is_near_limit(limits: Limits, payload: Payload) -> bool:
    """Whether bytes or pictures could matter. Pictures are not counted: one message may have many."""
    if _is_large(limits, payload):
        return True
    return bool(limits.images) and any(message.has_media for message in payload.messages)


def with_payload(request: MeasuredRequest, payload: Payload) -> MeasuredRequest:
    """The request in sizes that include bytes and pictures; the same object if neither is near its limit.

    Near such a limit a message counts for its share of the scarcest limit, expressed in tokens of the window.
    Then thresholds, cuts and marks work as usual.
    """
    sizes, limits = request.sizes, request.limits
    pictures = sum(size.media for size in sizes.messages)
    has_many_pictures = limits.images and pictures > _NEAR_SHARE * limits.images
    if not _is_large(limits, payload) and not has_many_pictures:
        return request
    window = limits.context or limits.input or _STAND_IN_WINDOW_TOKENS
    per_byte = window / limits.body_bytes if limits.body_bytes else 0.0
    per_picture = window / limits.images if limits.images else 0.0
    ratio = request.known.calibration.ratio
    messages = []
    for size, message in zip(sizes.messages, payload.messages, strict=True):
        tokens = int(max(size.tokens * ratio, message.size_bytes * per_byte, size.media * per_picture))
        kept = size.kept * tokens // max(size.tokens, 1)
        messages.append(Size(tokens, size.chars, size.media, kept))
    other_bytes = payload.body_bytes - sum(message.size_bytes for message in payload.messages)
    environment = int(max(sizes.environment * ratio, other_bytes * per_byte))
    scaled = Sizes(messages=messages, environment=environment)
    return MeasuredRequest(scaled, _EXACT, replace(limits, context=window))


def _is_large(limits: Limits, payload: Payload) -> bool:
    return limits.body_bytes is not None and 0 < _NEAR_SHARE * limits.body_bytes < payload.body_bytes


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
    3. yes, if it lies far below what was certainly sent, or below it by a margin while much was added, or if
       it is the same again although much was added.
    """
    uncached = max(2 * expected.added + _CACHE_BLOCK_TOKENS, _UNCACHED_SHARE * expected.before)
    if prompt_tokens <= uncached:
        return False
    growth = prompt_tokens - expected.before
    if growth >= _MIN_GROWTH_RATIO * expected.added:
        return False
    certain = (expected.whole or 0) * (1 - CALIBRATED_MARGIN)
    if certain - prompt_tokens >= _MIN_MISSING_TOKENS and (
        prompt_tokens < _FAR_BELOW_SHARE * certain or expected.added >= _MIN_ADDED_TOKENS
    ):
        return True
    is_much = expected.added >= max(_MUCH_ADDED_TOKENS, _MUCH_ADDED_SHARE * expected.before)
    return is_much and abs(growth) <= _SAME_SHARE * expected.before


def had_active(head: Head, pivot: Pivot | None, batches: Sequence[Batch]) -> bool:
    """Whether the head was sent with the same pivot and batches; otherwise its usage is not comparable."""
    if head.pivot != (pivot.key if pivot is not None else None) or len(head.batches) != len(batches):
        return False
    if pivot is not None and head.pivot_version != pivot.version:
        return False
    return not batches or head.batches == tuple(batch.key for batch in batches)
