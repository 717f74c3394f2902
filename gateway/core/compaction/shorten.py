"""Cuts long results and questions in the middle, visibly, if no window holds them.

The last resort, only for a request that would be refused after everything else.
"""

from collections.abc import Sequence
from typing import Final

from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size, View, shown_tokens
from gateway.core.sizing.calibrated_sizes import CalibratedSizes

# Lengths to try in characters, the largest first. Cut further, a text would say nothing.
_LENGTHS: Final[tuple[int, ...]] = tuple(2**power for power in range(20, 7, -1))


def choose_shortening(
    conversation: Conversation, calibrated: CalibratedSizes, view: View, excess_tokens: float
) -> tuple[Mark, ...]:
    """Marks that save so many true tokens, with the largest length that suffices, or the smallest."""
    marks: tuple[Mark, ...] = ()
    for length in _LENGTHS:
        marks = _find_marks(conversation, calibrated.sizes.messages, view, length)
        after = View(view.pivot, view.marks | {mark.position: mark for mark in marks})
        if calibrated.total(view) - calibrated.total(after) >= excess_tokens:
            break
    return marks


def choose_opening_chars(sizes: Sequence[Size], room_tokens: float) -> int:
    """The largest length with which the opening's texts fit the room (raw tokens), or the smallest one."""
    for length in _LENGTHS:
        if sum(shown_tokens(size, Mark(0, length)) for size in sizes) <= room_tokens:
            return length
    return _LENGTHS[-1]


def _find_marks(
    conversation: Conversation, sizes: Sequence[Size], view: View, length: int
) -> tuple[Mark, ...]:
    """Marks for the longer tool results and user texts after the pivot."""
    positions = (
        position
        for position in range(view.start, len(sizes))
        if conversation.messages[position].role in ("user", "tool") and sizes[position].chars > length
    )
    return tuple(Mark(position, length) for position in positions if not _is_shorter(view, position, length))


def _is_shorter(view: View, position: int, length: int) -> bool:
    mark = view.marks.get(position)
    return mark is not None and (mark.keep_chars is None or mark.keep_chars <= length)
