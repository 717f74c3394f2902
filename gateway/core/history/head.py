"""What is recorded about a request once it has been answered.

Knows no clock and no store. A head is found by the chain of its request.
"""

import hashlib
from dataclasses import dataclass

from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.conversation import Conversation

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
