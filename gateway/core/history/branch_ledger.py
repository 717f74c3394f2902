"""What a branch of a conversation remembers of its responses, to know what its old messages cost.

Values only: `core.economy` computes with them. Tokens that stand for money are those of fresh input.
"""

from dataclasses import dataclass


# Not frozen: one is made for every response, and a frozen dataclass takes six times as long to construct.
# Heads share it, so it is replaced and never changed.
@dataclass(kw_only=True, slots=True)
class BranchLedger:
    """A part of the record of a head."""

    # When the newest response ended, in seconds since 1970; 0 if that is not known.
    answered_seconds: float = 0.0
    # Whether the upstream has ever reported tokens that it read from its cache, or wrote to it.
    has_cached: bool = False
    # Whether the newest prompt was long enough for a cache, and its usage reported neither.
    is_uncached: bool = False
    # What the messages that a compaction would replace have cost since the last one, or since it was due.
    rent_tokens: float = 0.0
    # They have cost as much as a compaction, which has not taken effect yet.
    is_due: bool = False
    # The prompt right after the last compaction; before the first one what it would be. 0 if it is not known.
    base_tokens: float = 0.0
    # The key under which the pivot was made that was active then.
    pivot: str | None = None
    # The usual length of what stands for old messages, and of a reply; 0 if none is known.
    summary_tokens: float = 0.0
    reply_tokens: float = 0.0
