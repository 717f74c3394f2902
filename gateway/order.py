"""What is asked of one compaction: by whom, for what, and at which price."""

from dataclasses import dataclass

from gateway.reporting.events import Trigger


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """reason: for the log. calls: how many summaries may still be made until all of the cut is folded; this
    is the first of them. instructions: of the person who asked, empty where nobody gave any.
    pre_tokens: what the conversation holds before; filled in by who measures it.
    """

    reason: str
    calls: int
    trigger: Trigger = "auto"
    instructions: str = ""
    pre_tokens: int = 0


# The digest costs no call.
DIGEST = Order(reason="digest", calls=0)
