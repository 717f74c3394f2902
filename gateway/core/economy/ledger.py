"""Keeps the ledger of a branch: what is added to it by a response.

Knows no clock and no prices of models.
"""

from typing import Final

from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.sizing.usage import Usage

# No published minimum of a prompt that is cached is larger (docs/economics.md).
_LONGEST_MINIMUM_TOKENS: Final = 4_096


def note_response(before: BranchLedger | None, usage: Usage | None, now_seconds: float) -> BranchLedger:
    """The ledger after a response. usage: as reported; without it only the time is noted."""
    before = before or BranchLedger()
    has_cached, is_uncached = before.has_cached, before.is_uncached
    if usage is not None:
        shows_cache = bool(usage.cached_tokens or usage.cache_write_tokens)
        has_cached = has_cached or shows_cache
        if shows_cache or usage.prompt_tokens >= _LONGEST_MINIMUM_TOKENS:
            is_uncached = not shows_cache
    return BranchLedger(answered_seconds=now_seconds, has_cached=has_cached, is_uncached=is_uncached)
