"""What a request for a summary says, in the words of no wire format."""

from dataclasses import dataclass
from typing import Final

# Models that reason count their thinking against the limit: room beyond the summary itself.
THINKING_ALLOWANCE_TOKENS: Final = 8_192


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryRequest:
    """system: may be empty. parts: what the user message says, the instruction last.

    output_key: the name under which the model takes its reply's limit. cap, room: tokens of reply wanted and
    possible. greeting: how the client introduces itself to its upstream, for APIs that have a place for it.
    """

    model: str
    system: str
    parts: tuple[str, ...]
    output_key: str
    cap: int
    room: int
    greeting: tuple[str, ...] = ()
