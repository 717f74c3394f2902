"""Cuts long results and questions in the middle, visibly, if the upstream has refused them.

The last resort, only for a request that was refused and would be refused again after everything else.
"""

from collections.abc import Container, Sequence
from typing import Final

from gateway.core.compaction.clamp import SLACK_TOKENS, find_least_output
from gateway.core.compaction.situation import RefusedRequest, Situation
from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size, View, is_sent
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import Thresholds
from gateway.core.sizing.calibrated_sizes import CalibratedSizes

# A text that is cut further would say nothing.
_SHORTEST_CHARS: Final = 256
# The middle of a text may have fewer tokens than the rest of it.
_CUT_ROOM: Final = 0.98
# Of what was refused without a number.
_SMALLER: Final = 0.9


def count_allowed(situation: Situation, thresholds: Thresholds, refused: RefusedRequest) -> float:
    """Our tokens that fit, the first of these that is known.

    1. By the numbers of the refusal: how many were too many, of how many. 2. By our own count, if that is
    more than the window holds. 3. A tenth less than was refused, and no more than the hard threshold.
    """
    overflow = refused.overflow
    refused_tokens = situation.estimate(refused.view).tokens
    counted = overflow.prompt_tokens or overflow.used
    room = _find_room(situation, Limits(context=overflow.context, input=overflow.input))
    if counted is not None and room is not None and room < counted and situation.in_tokens is None:
        return _CUT_ROOM * room * refused_tokens / counted
    room = _find_room(situation, situation.limits)
    if room is not None and _CUT_ROOM * room < refused_tokens and situation.in_tokens is None:
        return _CUT_ROOM * room
    return min(_SMALLER * refused_tokens, thresholds.hard)


def choose_shortening(
    conversation: Conversation,
    calibrated: CalibratedSizes,
    view: View,
    excess_tokens: float,
    positions: Container[int] | None = None,
) -> tuple[Mark, ...]:
    """Marks that save so many true tokens, with the largest length that suffices.

    None if no length suffices, and where nothing has to be saved. positions: of the messages that may be cut;
    None for all.
    """
    sizes = calibrated.sizes.messages
    candidates = [
        position
        for position in range(len(sizes))
        if is_sent(view.pivot, position) and conversation.messages[position].role in ("user", "tool")
        if positions is None or position in positions
    ]
    whole = calibrated.total(view)

    def suffices(length: int) -> bool:
        marks = _find_marks(candidates, sizes, view, length)
        after = view._replace(marks=view.marks | {mark.position: mark for mark in marks})
        return whole - calibrated.total(after) >= excess_tokens

    least, most = _SHORTEST_CHARS, max((sizes[at].chars for at in candidates), default=0)
    if excess_tokens <= 0 or not suffices(least):
        return ()
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if suffices(middle) else (least, middle)
    return _find_marks(candidates, sizes, view, least)


def _find_room(situation: Situation, limits: Limits) -> int | None:
    """Tokens for a prompt; None if they are not known. The reply gives way first."""
    rooms = [limits.input] if limits.input else []
    if context := limits.context:
        rooms.append(context - find_least_output(situation.requested, context, situation.minimum_reply))
    return min(rooms) - SLACK_TOKENS if rooms else None


def _find_marks(
    candidates: Sequence[int], sizes: Sequence[Size], view: View, length: int
) -> tuple[Mark, ...]:
    """Marks for the longer texts."""
    longer = (position for position in candidates if sizes[position].chars > length)
    return tuple(Mark(position, length) for position in longer if not _is_shorter(view, position, length))


def _is_shorter(view: View, position: int, length: int) -> bool:
    mark = view.marks.get(position)
    return mark is not None and (mark.keep_chars is None or mark.keep_chars <= length)
