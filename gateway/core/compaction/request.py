"""What is asked of one compaction: by whom, for what, and at which price."""

from dataclasses import dataclass
from typing import Literal

from gateway.core.compaction.summary import Rejected
from gateway.core.history.pivot import Pivot

CompactionTrigger = Literal["auto", "manual"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionRequest:
    """reason: for the log. calls: how many summaries may still be made until all of the cut is folded; this
    is the first of them. instructions: of the person who asked, empty where nobody gave any.
    pre_tokens: what the conversation holds before; filled in by who measures it.
    """

    reason: str
    calls: int
    trigger: CompactionTrigger = "auto"
    instructions: str = ""
    pre_tokens: int = 0


# The digest costs no call.
DIGEST = CompactionRequest(reason="digest", calls=0)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What came of it, how many calls it took, and who was asked last; None: nobody."""

    outcome: Pivot | Rejected
    calls: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of one: the pivot that is ready, or None; and how many calls it took.

    pre_tokens: what the conversation held before. failure: why there is no pivot.
    """

    pivot: Pivot | None
    calls: int
    pre_tokens: int = 0
    failure: str = ""

    @property
    def is_ready(self) -> bool:
        return self.pivot is not None
