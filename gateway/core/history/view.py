"""What upstream is shown of a conversation: a pivot in force and marks; and how large that is.

Knows raw sizes only; what they are worth at an upstream is `estimate`'s business.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Batch, Mark, Pivot

# Role and separators of one message, in raw tokens: what it costs beyond its words.
FRAME_TOKENS = 4
# A cleared result: the placeholder and the message around it.
CLEARED_TOKENS = 16


class Size(NamedTuple):
    """Raw tokens of a message by our own count, the characters of its texts (of the longest, where a mark
    shortens each of several), and its pictures and files. kept: of the tokens, those that no mark takes away.
    """

    tokens: int
    chars: int
    media: int = 0
    kept: int = 0

    @property
    def loose(self) -> int:
        """What marks may take."""
        return self.tokens - self.kept


class View(NamedTuple):
    """marks: by position; the ones that a pivot covers are ignored."""

    pivot: Pivot | None
    marks: dict[int, Mark]

    @property
    def start(self) -> int:
        """The first position that is sent as itself behind the pivot, 0 without one."""
        return self.pivot.covers if self.pivot else 0


def make_view(pivot: Pivot | None, batches: Sequence[Batch]) -> View:
    """The newest batch decides where two mark the same message."""
    if not batches:
        return View(pivot, {})
    marks = {mark.position: mark for batch in batches for mark in batch.marks}
    start = pivot.covers if pivot else 0
    return View(pivot, {position: mark for position, mark in marks.items() if position >= start})


def shown_tokens(size: Size, mark: Mark | None) -> int:
    """Raw tokens of a message as it is sent."""
    if mark is None:
        return size.tokens
    if mark.keep_chars is None:
        return min(size.tokens, size.kept + CLEARED_TOKENS)
    share = min(1.0, mark.keep_chars / max(size.chars, 1))
    return min(size.tokens, size.kept + int(size.loose * share) + CLEARED_TOKENS)


def measure_range(view: View, sizes: Sequence[Size], start: int, end: int) -> int:
    """Raw tokens of the messages `start:end` as they are sent, pivot aside."""
    marks = view.marks
    if not marks:
        return sum(size.tokens for size in sizes[start:end])
    return sum(shown_tokens(sizes[position], marks.get(position)) for position in range(start, end))


def measure(view: View, conversation: Conversation, sizes: Sequence[Size], environment: int, end: int) -> int:
    """Raw tokens of everything that is sent up to position `end`; `environment` is leading block and
    tools.
    """
    pivot = view.pivot
    if pivot is None:
        return environment + measure_range(view, sizes, 0, end)
    shown = environment + pivot.opening_tokens + pivot.tokens
    return shown + measure_range(view, sizes, min(pivot.covers, end), end)
