"""What a branch of a conversation remembers of its responses for what it costs. Values only.

`core.economy` computes with them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchLedger:
    """A part of the record of a head. Of a branch whose client never said anything it holds the defaults."""

    # When its newest response ended, in seconds since 1970; 0 if that is not known.
    answered_seconds: float = 0.0
    # Whether its upstream has ever reported tokens that it read from its cache, or wrote to it.
    has_cached: bool = False
    # Whether the newest prompt was long enough for a cache, and its usage reported neither.
    is_uncached: bool = False
