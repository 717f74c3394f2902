"""What the requests of a conversation would have been without the gateway: nothing summarized or cleared.

An estimate; docs/admin-api.md says how it is made, and where it is in favor of whom. Turns may go to any of
several processes, so it uses what a request itself and its head say, which all of them know.
"""

from typing import Final, NamedTuple

import msgspec

from gateway.activity.series import RequestPoint
from gateway.core.economy import COLD_SECONDS
from gateway.core.sizing.usage import Usage

# Changes of the prefix that the gateway made.
_OWN_CHANGES: Final = ("compaction", "pruning", "edit")


class Prior(NamedTuple):
    """What is known of a conversation before a request. All in tokens; 0 for what is not known."""

    # The longest prompt that the model takes.
    window: int = 0
    # The prompt before, as the upstream reported it.
    prompt: int = 0
    # What a turn adds.
    growth: float = 0.0


class Unshortened(msgspec.Struct, frozen=True, kw_only=True):
    # Of the newest request whose upstream reported usage; 0 before the first one.
    at_seconds: float = 0.0
    # How much of the prompt before it came out of the cache, of the newest request that only added to its
    # prefix. None before there was one.
    hit_share: float | None = None
    # The number of the request that would not have fit its window any more; 0 while all would have.
    died_at: int = 0


def follow(
    before: Unshortened, point: RequestPoint, usage: Usage, prior: Prior, number: int
) -> tuple[Unshortened, Usage | None]:
    """The next request, and what its upstream would have reported; None where the conversation would be over.

    number: of the request.
    """
    if before.died_at:
        return before, None
    # An estimate, by a count that was learned from what the upstream reports.
    left_out = point.received - point.sent
    prompt = usage.prompt_tokens + left_out
    if left_out > 0 and prior.window and prompt > prior.window:
        return msgspec.structs.replace(before, died_at=number), None
    hit = _find_hit_share(usage, prior)
    has_grown = bool(before.at_seconds) and point.change is None
    after = Unshortened(
        at_seconds=point.at_seconds,
        hit_share=hit if has_grown else before.hit_share,
        died_at=before.died_at,
    )
    if left_out <= 0:
        # Nothing was left out: no guess is needed.
        return after, usage
    return after, _make_usage(usage, prompt, _choose_cached(before, point, usage, prior))


def _find_hit_share(usage: Usage, prior: Prior) -> float:
    """How much of the prompt before came out of the cache."""
    known = min(usage.prompt_tokens, prior.prompt or usage.prompt_tokens)
    return min(1.0, (usage.cached_tokens or 0) / known) if known > 0 else 0.0


def _choose_cached(before: Unshortened, point: RequestPoint, usage: Usage, prior: Prior) -> int:
    """What was left out is old, so as much of it as of the rest would have come out of the cache. Where the
    gateway itself has changed the prefix, and the cache was warm, all but a usual turn is as old, and it hits
    as usual.
    """
    left_out, cached = point.received - point.sent, usage.cached_tokens or 0
    is_warm = point.at_seconds - before.at_seconds < COLD_SECONDS
    if before.at_seconds and point.change in _OWN_CHANGES and is_warm:
        usual = before.hit_share if before.hit_share is not None else float(cached > 0)
        return round(usual * max(0.0, usage.prompt_tokens + left_out - prior.growth))
    return round(cached + _find_hit_share(usage, prior) * left_out)


def _make_usage(usage: Usage, prompt: int, cached: int) -> Usage:
    """Of what is not cached as much is written to the cache as of the reported prompt."""
    cached = min(cached, prompt)
    own_new = usage.prompt_tokens - (usage.cached_tokens or 0)
    written = round((usage.cache_write_tokens or 0) * (prompt - cached) / own_new) if own_new > 0 else 0
    return Usage(prompt, usage.output_tokens, cached, min(written, prompt - cached))
