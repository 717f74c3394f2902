"""What a compaction is asked to do, and what comes of it."""

from dataclasses import dataclass
from typing import Final, Literal

from gateway.core.compaction.summary import Rejected
from gateway.core.history.pivot import Pivot
from gateway.core.sizing.usage import Usage

CompactionTrigger = Literal["auto", "manual"]
SummaryKind = Literal["summary", "digest"]
# The reasons of compactions that are made in advance: the window fills up, or old messages have cost enough.
OVERFLOW: Final = "overflow"
ECONOMY: Final = "economy"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionRequest:
    # A label for logs, metrics and the compaction log.
    reason: str
    # How many summary calls may still be made until the whole cut is compacted, this one included.
    calls: int
    trigger: CompactionTrigger = "auto"
    # What the person who asked for it wants the summary to keep; empty without instructions.
    instructions: str = ""
    # It was interrupted before. If another process is at it, that one may be dead: its lease is waited for.
    is_resumed: bool = False
    # See Pivot.
    is_early: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether a client, or a person, waits for it."""
        return self.reason not in (OVERFLOW, ECONOMY)


# A digest needs no call.
DIGEST = CompactionRequest(reason="digest", calls=0)


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

    @property
    def pivot(self) -> Pivot | None:
        return self.outcome if isinstance(self.outcome, Pivot) else None

    @property
    def failure(self) -> str:
        """The reason why there is no pivot; empty if there is one."""
        return "" if isinstance(self.outcome, Pivot) else self.outcome.reason
