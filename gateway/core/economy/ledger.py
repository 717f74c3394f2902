"""Keeps the ledger of a branch: what is added to it by a response.

Knows no clock and no prices of models.
"""

from dataclasses import dataclass, replace
from typing import Final

from gateway.core.economy.rates import Rates
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.head import Head
from gateway.core.sizing.usage import Usage

# No published minimum of a prompt that is cached is larger (docs/economics.md).
_LONGEST_MINIMUM_TOKENS: Final = 4_096
# What models write if they are not told a length.
USUAL_SUMMARY_TOKENS: Final = 1_500


# Not frozen: one is made for every response, and a frozen dataclass takes six times as long to construct.
@dataclass(kw_only=True, slots=True)
class AnsweredTurn:
    """A response whose upstream reported its usage. Tokens."""

    usage: Usage
    # Of the active pivot: the key under which it was made, which its copies share, and what stands for the
    # messages that it covers.
    pivot: str | None
    pivot_tokens: int
    # What no compaction replaces: everything up to the end of the opening.
    fixed_tokens: float
    # The usual tail.
    tail_tokens: int


def shows_cache(usage: Usage) -> bool:
    return bool(usage.cached_tokens or usage.cache_write_tokens)


def note_time(before: BranchLedger | None, now_seconds: float) -> BranchLedger:
    """The ledger after a response without usage."""
    return replace(before or BranchLedger(), answered_seconds=now_seconds)


def note_response(
    before: BranchLedger | None, answered: AnsweredTurn, rates: Rates, now_seconds: float
) -> BranchLedger:
    """The ledger after a response.

    Whatever is beyond the prompt of right after the last compaction would not have been sent if there had
    been another one since: it pays the rent of a token that is read again. A pivot that has taken effect
    begins anew, from the prompt that it made.
    """
    before = before or BranchLedger()
    usage, prompt_tokens = answered.usage, answered.usage.prompt_tokens
    is_cached = shows_cache(usage)
    is_long = prompt_tokens >= _LONGEST_MINIMUM_TOKENS
    is_news = answered.pivot != before.pivot
    summary_tokens = before.summary_tokens
    if is_news and answered.pivot is not None:
        summary_tokens = _smooth(summary_tokens, answered.pivot_tokens)
        base_tokens, rent_tokens = float(prompt_tokens), 0.0
    elif is_news or not before.base_tokens:
        usual = summary_tokens or USUAL_SUMMARY_TOKENS
        base_tokens, rent_tokens = answered.fixed_tokens + usual + answered.tail_tokens, 0.0
    else:
        base_tokens = before.base_tokens
        rent_tokens = before.rent_tokens + rates.read * max(0.0, prompt_tokens - base_tokens)
    return BranchLedger(
        answered_seconds=now_seconds,
        has_cached=before.has_cached or is_cached,
        is_uncached=not is_cached if is_cached or is_long else before.is_uncached,
        rent_tokens=rent_tokens,
        base_tokens=base_tokens,
        pivot=answered.pivot,
        summary_tokens=summary_tokens,
        reply_tokens=_smooth(before.reply_tokens, usage.output_tokens),
    )


def find_ledger(head: Head | None, scope: str) -> BranchLedger | None:
    """What a head knows that holds for a request of this scope.

    What was seen of a cache is that of one upstream and model.
    """
    ledger = head.ledger if head is not None else None
    if head is None or ledger is None or head.scope == scope:
        return ledger
    return replace(ledger, has_cached=False, is_uncached=False)


def pass_on_ledger(head: Head | None, scope: str) -> BranchLedger | None:
    """The same, for a head that continues this one without a response of its own.

    It has another prefix, of which no cache knows yet.
    """
    ledger = find_ledger(head, scope)
    return replace(ledger, answered_seconds=0.0) if ledger is not None else None


def pay_rent(ledger: BranchLedger) -> BranchLedger:
    """A compaction begins. If it fails, as much rent has to come together again before the next one."""
    return replace(ledger, rent_tokens=0.0)


def _smooth(before: float, now: float) -> float:
    return (before + now) / 2 if before else float(now)
