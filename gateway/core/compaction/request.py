"""What a compaction is asked to do, and what comes of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from gateway.core.compaction.summary import Rejected
from gateway.core.history.pivot import Pivot
from gateway.core.sizing.usage import Usage

CompactionTrigger = Literal["auto", "manual"]
SummaryKind = Literal["summary", "digest"]


class CompactionReason(StrEnum):
    """Why a summary is wanted: the same word in log, metrics, traces, events, admin API and page."""

    # A response has passed the soft threshold, so the next summary is prepared.
    SOFT_THRESHOLD = "soft_threshold"
    # A request is above the hard threshold, so it waits.
    HARD_THRESHOLD = "hard_threshold"
    # The upstream has refused a request as too long, which waits.
    REFUSED = "refused"
    # Old messages have cost as much as a compaction.
    COST = "cost"
    # A person asked for it.
    MANUAL = "manual"
    # The client drops or changes old messages, so that no later request would use a summary.
    CLIENT_TRIMS = "client_trims"


def find_reason(word: str) -> CompactionReason | None:
    """The reason that a record names; None if it names none that is known."""
    return next((reason for reason in CompactionReason if reason == word), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionRequest:
    reason: CompactionReason
    # How many summary calls may still be made until the whole cut is compacted, this one included.
    calls: int
    kind: SummaryKind = "summary"
    # Whether a client, or a person, waits for it.
    is_awaited: bool = False
    # What the person who asked for it wants the summary to keep; empty without instructions.
    instructions: str = ""
    # It was interrupted before. If another process is at it, that one may be dead: its lease is waited for.
    is_resumed: bool = False

    @property
    def trigger(self) -> CompactionTrigger:
        return "manual" if self.reason is CompactionReason.MANUAL else "auto"


def make_digest_request(reason: CompactionReason) -> CompactionRequest:
    """For a digest, which needs no call."""
    return CompactionRequest(reason=reason, calls=0, kind="digest", is_awaited=True)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    # The new pivot, durable by now, or why there is none.
    outcome: Pivot | Rejected
    # How many summary calls were made.
    calls: int
    # The model of the last call; None without a call.
    model: str | None = None
    # What the conversation held before, in true tokens; 0 if it was not measured.
    pre_tokens: int = 0
    # What all calls used, as far as the upstream reported it; None if it reported nothing.
    usage: Usage | None = None
    # Which part of them rode the prompt cache, as continuations of the conversation; the others quoted it.
    riding_calls: int = 0
    riding_usage: Usage | None = None
    # Where the last call went; None without a call. Riding calls go where the conversation goes.
    upstream: str | None = None
    # What the conversation holds with the new pivot, estimated; None without one.
    post_tokens: int | None = None

    @property
    def pivot(self) -> Pivot | None:
        return self.outcome if isinstance(self.outcome, Pivot) else None

    @property
    def failure(self) -> str:
        """The reason why there is no pivot; empty if there is one."""
        return "" if isinstance(self.outcome, Pivot) else self.outcome.reason
