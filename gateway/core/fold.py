"""How much of a history can one summary call hold? What to try, mildest first.

DESIGN §6: tool outputs cut to 2,000 characters, then folded in chunks; each chunk is a pivot of its own,
which the next one builds on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.core.conversation import Conversation, is_boundary
from gateway.core.cut import Cut
from gateway.core.pivot import Pivot
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


def from_originals(cut: Cut, pivots: Sequence[Pivot], weights: Weights) -> Cut | None:
    """The cut that folds again what a digest covers, for a client still sends it. None: it builds on none.

    pivots: every eligible one, ascending; the newest real summary before the digest is built on.
    """
    if cut.base is None or not cut.base.is_digest:
        return None
    real = [pivot for pivot in pivots if not pivot.is_digest and pivot.covers < cut.covers]
    base = real[-1] if real else None
    start = max(base.covers if base else 0, cut.base.opening_end)
    return replace(cut, base=base, start=start, folded=_folded_tokens(weights, base, start, cut.covers))


def shrink_cut(conversation: Conversation, weights: Weights, cut: Cut, share: float) -> Cut:
    """The cut that folds only the oldest share of its messages: whole groups, at least one of them."""
    if share >= 1.0:
        return cut
    covers = cut.start + max(1, int(share * (cut.covers - cut.start)))
    while covers < cut.covers and not is_boundary(conversation, covers):
        covers += 1
    return replace(cut, covers=covers, folded=_folded_tokens(weights, cut.base, cut.start, covers))


def _folded_tokens(weights: Weights, base: Pivot | None, start: int, covers: int) -> int:
    summary = base.tokens * weights.ratio if base is not None else 0.0
    return int(sum(weights.messages[start:covers]) + summary)
