"""How a conversation is sent upstream: with an active pivot and marks, and the raw size of that.

Knows raw sizes only; `core.sizing` turns them into true tokens.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gateway.core.history.pivot import Batch, Mark, Pivot, Recall

# Raw tokens of a message's role and separators.
FRAME_TOKENS = 4
# Raw tokens of a cleared result: the placeholder and the message around it.
CLEARED_TOKENS = 16
_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


class Size(NamedTuple):
    """The size of one message by our own count."""

    # Raw tokens.
    tokens: int
    # Characters of its texts; of the longest one if a mark shortens each of several.
    chars: int
    # Pictures and files.
    media: int = 0
    # Tokens that no mark can remove.
    kept: int = 0

    @property
    def removable(self) -> int:
        """Tokens that a mark can remove."""
        return self.tokens - self.kept


class View(NamedTuple):
    pivot: Pivot | None
    # By position; those that the pivot covers are left out.
    marks: dict[int, Mark]
    # Raw tokens of recalls, by their positions.
    inserted: Mapping[int, int] = _NOTHING

    @property
    def start(self) -> int:
        """The first position after the pivot, 0 without one."""
        return self.pivot.covers if self.pivot else 0


def make_view(pivot: Pivot | None, batches: Sequence[Batch], recalls: Sequence[Recall] = ()) -> View:
    """If two batches mark the same message, the newer mark applies. Recalls before the pivot's end are left
    out.
    """
    if not batches and not recalls:
        return View(pivot, {})
    marks = {mark.position: mark for batch in batches for mark in batch.marks}
    kept = {position: mark for position, mark in marks.items() if is_sent(pivot, position)}
    inserted: dict[int, int] = {}
    for recall in recalls:
        if recall.position >= (pivot.covers if pivot else 0):
            inserted[recall.position] = inserted.get(recall.position, 0) + recall.tokens
    return View(pivot, kept, inserted or _NOTHING)


def is_sent(pivot: Pivot | None, position: int) -> bool:
    """Whether the pivot leaves this message: it is behind it, or in the opening."""
    return pivot is None or position >= pivot.covers or position < pivot.opening_end


def shown_tokens(size: Size, mark: Mark | None) -> int:
    """Raw tokens of a message as sent."""
    if mark is None:
        return size.tokens
    if mark.keep_chars is None:
        return min(size.tokens, size.kept + CLEARED_TOKENS)
    share = min(1.0, mark.keep_chars / max(size.chars, 1))
    return min(size.tokens, size.kept + int(size.removable * share) + CLEARED_TOKENS)


def measure_range(view: View, sizes: Sequence[Size], start: int, end: int) -> int:
    """Raw tokens of the messages `start:end` as sent, without the pivot."""
    marks = view.marks
    if not marks:
        return sum(size.tokens for size in sizes[start:end])
    return sum(shown_tokens(sizes[position], marks.get(position)) for position in range(start, end))


def measure_pivot(view: View, sizes: Sequence[Size]) -> int:
    """Raw tokens of the opening as sent and of the pivot's own messages; 0 without a pivot."""
    pivot = view.pivot
    if pivot is None:
        return 0
    cut = (mark for position, mark in view.marks.items() if position < pivot.opening_end)
    left_out = sum(sizes[mark.position].tokens - shown_tokens(sizes[mark.position], mark) for mark in cut)
    return max(0, pivot.opening_tokens - left_out) + pivot.tokens


def measure(view: View, sizes: Sequence[Size], environment: int, end: int) -> int:
    """Raw tokens of everything sent up to position `end`. `environment`: those of leading block and tools."""
    pivot = view.pivot
    for position, tokens in view.inserted.items():
        environment += tokens if position < end else 0
    if pivot is None:
        return environment + measure_range(view, sizes, 0, end)
    shown = environment + measure_pivot(view, sizes)
    return shown + measure_range(view, sizes, min(pivot.covers, end), end)
