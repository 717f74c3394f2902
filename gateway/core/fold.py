"""How much of a history can one summary call hold? What to try, mildest first.

DESIGN §6: tool outputs cut to 2,000 characters, then folded in chunks; each chunk is a pivot of its own,
which the next one builds on.
"""

from dataclasses import dataclass, replace
from typing import Final

from gateway.core.conversation import Conversation, is_boundary
from gateway.core.cut import Cut
from gateway.core.weights import Weights


@dataclass(frozen=True, slots=True)
class Attempt:
    """share: of the messages to fold, the oldest first. Longer texts than `…_chars` are cut in the middle."""

    share: float = 1.0
    tool_chars: int | None = None
    text_chars: int | None = None


# Document 003 §5: contents cut to 2,000 characters. Texts of people and of the model are cut last: what they
# say is what a summary is for.
ATTEMPTS: Final = (
    Attempt(),
    Attempt(tool_chars=2_000),
    # One call with shorter outputs before two calls: a client is waiting (DECISIONS, chunks).
    Attempt(tool_chars=500),
    Attempt(share=0.5, tool_chars=2_000),
    Attempt(share=0.25, tool_chars=2_000),
    Attempt(share=0.125, tool_chars=2_000),
    Attempt(share=0.125, tool_chars=500),
    Attempt(share=0.125, tool_chars=120),
    Attempt(share=0.125, tool_chars=120, text_chars=8_000),
    Attempt(share=0.0, tool_chars=120, text_chars=2_000),
)


def shrink_cut(conversation: Conversation, weights: Weights, cut: Cut, share: float) -> Cut:
    """The cut that folds only the oldest share of its messages: whole groups, at least one of them."""
    if share >= 1.0:
        return cut
    covers = cut.start + max(1, int(share * (cut.covers - cut.start)))
    while covers < cut.covers and not is_boundary(conversation, covers):
        covers += 1
    base = cut.base.tokens * weights.ratio if cut.base else 0.0
    return replace(cut, covers=covers, folded=int(sum(weights.messages[cut.start : covers]) + base))
