"""What to do with results and questions that no window holds: cut them in the middle, visibly.

The last resort: only for a request that would be refused even after everything else.
"""

from collections.abc import Sequence

from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size, View, shown_tokens
from gateway.core.sizing.calibrated_sizes import CalibratedSizes

# Character limits to try, largest first. Below the smallest a text says nothing any more.
_LIMITS: tuple[int, ...] = tuple(2**power for power in range(20, 7, -1))


def choose_shortening(
    conversation: Conversation, weights: CalibratedSizes, view: View, excess_tokens: float
) -> tuple[Mark, ...]:
    """Marks that take `excess_tokens` (true) off, with the mildest limit that does; else the strictest."""
    marks: tuple[Mark, ...] = ()
    for limit in _LIMITS:
        marks = _marks_at(conversation, weights.sizes.messages, view, limit)
        after = View(view.pivot, view.marks | {mark.position: mark for mark in marks})
        if weights.total(view) - weights.total(after) >= excess_tokens:
            break
    return marks


def _marks_at(conversation: Conversation, sizes: Sequence[Size], view: View, limit: int) -> tuple[Mark, ...]:
    """Tool results and user texts above the limit that are sent as themselves."""
    start = view.start
    positions = (
        position
        for position in range(start, len(sizes))
        if conversation.messages[position].role in ("user", "tool") and sizes[position].chars > limit
    )
    return tuple(Mark(position, limit) for position in positions if not _is_shorter(view, position, limit))


def _is_shorter(view: View, position: int, limit: int) -> bool:
    mark = view.marks.get(position)
    return mark is not None and (mark.keep_chars is None or mark.keep_chars <= limit)


def choose_opening_chars(sizes: Sequence[Size], room_tokens: float) -> int:
    """The mildest limit on the opening's texts that makes it fit the room; else the strictest. Raw tokens."""
    for limit in _LIMITS:
        if sum(shown_tokens(size, Mark(0, limit)) for size in sizes) <= room_tokens:
            return limit
    return _LIMITS[-1]
