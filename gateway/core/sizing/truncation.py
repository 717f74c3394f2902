"""Did upstream leave out a part of the prompt without saying so? FACTS §4: Ollama does.

Its window may be far smaller than anybody knows; the prompt it reports then stays at that window however much
is sent. Precision comes first: where the numbers can be read in another way (only what was not cached is
counted, pictures cost less than our flat figure), they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.history.view import make_view, measure, measure_range
from gateway.core.sizing.estimate import CALIBRATED_MARGIN, Calibration, Sizes

# Below this part of what is certainly there, no mixture of contents explains the difference.
_FAR_BELOW = 0.6
_LEAST_MISSING_TOKENS = 2_000
# No tokenizer makes so little of what was added (`estimate`, plausible ratios).
_LEAST_GROWTH = 0.2
_LEAST_ADDED_TOKENS = 500
# Without a calibration: the same prompt again, give or take a message at the edge, although this much was
# added. Less may be a thought that upstream dropped from the history meanwhile.
_SAME = 0.02
_MUCH_ADDED_TOKENS, _MUCH_ADDED = 1_000, 0.1
# Usage that leaves out what was cached is about what was added and one block; the largest are 1,024 tokens.
# Where the cache began late, it was at most a thirtieth of the prompt before (recorded sessions).
_CACHE_BLOCK_TOKENS = 1_024
# Real sessions run at 2.8 characters a token, prose in English at four to five.
_MOST_BYTES_PER_TOKEN = 12
_UNCACHED_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What usage is compared with, in tokens.

    before: the prompt that the last answer of this conversation told, the same being in force. added: raw
    tokens sent since. whole: calibrated tokens of everything sent, None before the calibration is settled.
    """

    before: int
    added: int
    whole: int | None


def expect_usage(
    conversation: Conversation,
    sizes: Sizes,
    sent: tuple[Pivot | None, Sequence[Batch]],
    before: Head | None,
    calibration: Calibration,
) -> Expected | None:
    """For a request sent with this pivot and these batches. `before`: the nearest head of its scope.

    None where usage cannot be judged: nothing to compare it with, something else in force, media in it.
    """
    if before is None or not before.prompt_tokens or not had_active(before, *sent):
        return None
    if any(message.has_media for message in (*conversation.leading, *conversation.messages)):
        return None
    view, end = make_view(*sent), len(conversation.messages)
    raw = measure(view, conversation, sizes.messages, sizes.environment, end)
    return Expected(
        before=before.prompt_tokens,
        added=measure_range(view, sizes.messages, max(before.length, view.start), end),
        whole=int(raw * calibration.ratio) if calibration.is_settled else None,
    )


def is_suspicious(prompt_tokens: int, before: int, added_bytes: int) -> bool:
    """Is this usage worth a closer look? It should have grown by what was added since the answer before."""
    return prompt_tokens - before < added_bytes / _MOST_BYTES_PER_TOKEN


def is_truncated(prompt_tokens: int, expected: Expected) -> bool:
    """Does this usage say that a part of the prompt was left out? Cases in order: one that may be the
    uncached part alone says nothing, nor does one that grew with what was added; one that lies below what is
    certainly there does, and the number of the answer before again, although much was added.
    """
    uncached = max(2 * expected.added + _CACHE_BLOCK_TOKENS, _UNCACHED_SHARE * expected.before)
    if prompt_tokens <= uncached:
        return False
    grown = prompt_tokens - expected.before
    if grown >= _LEAST_GROWTH * expected.added:
        return False
    return _is_missing(prompt_tokens, expected) or _is_same(grown, expected)


def _is_missing(prompt_tokens: int, expected: Expected) -> bool:
    """By far, or by a margin while much was added."""
    certain = (expected.whole or 0) * (1 - CALIBRATED_MARGIN)
    if certain - prompt_tokens < _LEAST_MISSING_TOKENS:
        return False
    return prompt_tokens < _FAR_BELOW * certain or expected.added >= _LEAST_ADDED_TOKENS


def _is_same(grown: int, expected: Expected) -> bool:
    is_much = expected.added >= max(_MUCH_ADDED_TOKENS, _MUCH_ADDED * expected.before)
    return is_much and abs(grown) <= _SAME * expected.before


def had_active(head: Head, pivot: Pivot | None, batches: Sequence[Batch]) -> bool:
    """The same as is sent now? Otherwise what the head tells of tokens says nothing of this answer."""
    if head.pivot != (pivot.key if pivot is not None else None) or len(head.batches) != len(batches):
        return False
    return not batches or head.batches == tuple(batch.key for batch in batches)
