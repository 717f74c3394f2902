"""What the requests of a conversation would have been without the gateway: nothing summarized or cleared.

An estimate. docs/economics.md says how it is made, and where it is in favor of whom. Values in, values out.
"""

from typing import Final

import msgspec

from gateway.activity.series import RequestPoint
from gateway.core.sizing.usage import Usage

# Providers forget a prefix that was not used for so long, at the latest.
_COLD_SECONDS: Final = 3_600.0
# Changes of the prefix that the gateway made.
_OWN_CHANGES: Final = ("compaction", "pruning", "edit")


class Unshortened(msgspec.Struct, frozen=True, kw_only=True):
    """The newest request whose upstream reported usage."""

    at_seconds: float = 0.0
    # Its prompt as the upstream reported it, and as it would have been; 0 before the first one.
    sent_tokens: int = 0
    prompt_tokens: int = 0
    # How much of the prompt before it came out of the cache, of the newest request that only added to its
    # prefix. None before there was one.
    hit_share: float | None = None
    # The number of the request that would not have fit its window any more; 0 while all would have.
    died_at: int = 0


def follow(
    before: Unshortened, point: RequestPoint, usage: Usage, window: int, number: int
) -> tuple[Unshortened, Usage | None]:
    """The next request, and what its upstream would have reported; None where the conversation would be over.

    window: the longest prompt that the model takes; 0 if it is not known. number: of the request.
    """
    if before.died_at:
        return before, None
    # What was left out is an estimate, by a count that was learned from what the upstream reports.
    prompt = max(1, usage.prompt_tokens + point.received - point.sent)
    if window and prompt > window:
        return msgspec.structs.replace(before, died_at=number), None
    hit = _choose_hit_share(before, point, usage)
    known = before.prompt_tokens or prompt
    cached = round(hit * min(prompt, known))
    own_new = usage.prompt_tokens - (usage.cached_tokens or 0)
    written = round((usage.cache_write_tokens or 0) * (prompt - cached) / own_new) if own_new > 0 else 0
    has_grown = bool(before.sent_tokens) and point.change is None
    after = Unshortened(
        at_seconds=point.at_seconds,
        sent_tokens=usage.prompt_tokens,
        prompt_tokens=prompt,
        hit_share=hit if has_grown else before.hit_share,
    )
    return after, Usage(prompt, usage.output_tokens, cached, min(written, prompt - cached))


def _choose_hit_share(before: Unshortened, point: RequestPoint, usage: Usage) -> float:
    """How much of the prompt before would have come out of the cache: as much as did, unless the gateway
    itself has changed the prefix and the cache was warm. Then as much as usual.
    """
    cached = usage.cached_tokens or 0
    is_warm = point.at_seconds - before.at_seconds < _COLD_SECONDS
    if before.sent_tokens and point.change in _OWN_CHANGES and is_warm:
        return before.hit_share if before.hit_share is not None else float(cached > 0)
    known = min(usage.prompt_tokens, before.sent_tokens or usage.prompt_tokens)
    return min(1.0, cached / known) if known > 0 else 0.0
