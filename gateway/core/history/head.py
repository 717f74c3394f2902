"""What is recorded about a request once it has been answered, and what its branch remembers of responses.

Knows no clock and no store. A head is found by the chain of its request. Tokens that stand for money, with
which `core.economy` computes, are those of fresh input.
"""

import hashlib
from dataclasses import dataclass

from gateway.core.history.conversation import Conversation


# Not frozen: one is made for every response, and a frozen dataclass takes six times as long to construct.
# Heads share it, so it is replaced and never changed.
@dataclass(kw_only=True, slots=True)
class BranchLedger:
    """A part of the record of a head: what tells what the old messages of a branch cost."""

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


# A change below this share of the known tokens, or of the next threshold, is small compared with the error of
# an estimate.
_WORTH_SAVING_SHARE = 0.1


# Not frozen: one is made for every request, and a frozen dataclass takes six times as long to construct.
@dataclass(kw_only=True, slots=True)
class Head:
    """A record."""

    owner: str
    key: str
    length: int
    # Fingerprint of upstream, model, leading block and tools. Usage is only comparable within one scope.
    scope: str
    tools: str
    # As upstream counts; 0 if it reported nothing.
    prompt_tokens: int
    output_tokens: int
    # Recent growth per turn.
    growth_tokens: float
    # Keys of the active pivot and batches.
    pivot: str | None
    batches: tuple[str, ...]
    conversation: str
    parent: str | None
    # The chain of the first request that continued from here; any other is a branch. Set once.
    followed_by: str | None = None
    # How many messages the active pivot covers.
    covers: int = 0
    # How many messages behind the pivot the client no longer sent as it first did.
    dropped: int = 0
    # Of the active pivot. The usage counts for this version alone.
    pivot_version: int = 1
    # Keys of the recalls in use, and of those of its own reply.
    recalls: tuple[str, ...] = ()
    # None before the first response, and in heads of earlier versions.
    ledger: BranchLedger | None = None
    # The client's name for its session. Another one with the same messages is another conversation.
    session: str | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def is_sent_alike(one: Head, other: Head) -> bool:
    """Whether both were sent with the same pivot, in the same version, the same batches and recalls."""
    return (
        one.pivot == other.pivot
        and one.pivot_version == other.pivot_version
        and one.batches == other.batches
        and one.recalls == other.recalls
    )


def count_dropped(conversation: Conversation, covers: int) -> int:
    """Messages behind the covered ones that the client no longer sends, or sends in another form."""
    if conversation.trim is None:
        return 0
    received = len(conversation.trim.positions) - conversation.index(covers)
    gone = len(conversation.messages) - covers - received
    return gone + sum(position >= covers for position in conversation.find_changed())


def is_comparable(head: Head, conversation: Conversation) -> bool:
    """Whether as much of the history was missing then as is now."""
    return head.dropped == count_dropped(conversation, head.covers)


def is_worth_saving(head: Head, before: Head, threshold_tokens: int) -> bool:
    """Whether to save a head beside an earlier one of its branch; small differences can be estimated.

    threshold_tokens: the size at which something has to be decided, 0 if there is none.
    """
    if not is_sent_alike(head, before):
        return True
    known_tokens = before.total_tokens
    return abs(head.total_tokens - known_tokens) > _WORTH_SAVING_SHARE * max(known_tokens, threshold_tokens)


def fingerprint_scope(upstream: str, model: str, leading: list[bytes], tools: bytes) -> str:
    """SHA-256 of everything outside the chain that the size of a prompt depends on."""
    parts = [upstream.encode(), model.encode(), b"".join(leading), tools]
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).hexdigest()


def smooth_growth(before: Head | None, total_tokens: int) -> float:
    """The mean of the last growth and this one; a decrease (a rewind, a compaction) is ignored."""
    if before is None or not before.prompt_tokens:
        return 0.0
    step = total_tokens - before.total_tokens
    if step <= 0:
        return before.growth_tokens
    return float(step) if not before.growth_tokens else (before.growth_tokens + step) / 2
