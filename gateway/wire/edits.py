"""The edits that make an outgoing body of a received one, in any wire format.

Carries out a view. Every message that is kept leaves byte-identical and in order (DESIGN §5).
"""

from collections.abc import Callable, Mapping

from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Pivot
from gateway.core.history.view import View
from gateway.wire.request import RequestBody
from gateway.wire.splice import Edit


def make_view_edits(
    body: RequestBody,
    conversation: Conversation,
    view: View,
    rendered: Mapping[int, bytes],
    render_summary: Callable[[Pivot, str], bytes],
) -> list[Edit]:
    """Edits for pivot and marks. `rendered`: the marked messages by position, each as it is to be sent.

    `render_summary`: makes the messages that stand for what the pivot covers, of it and the role behind it.
    """
    skip = len(conversation.leading)
    pivot, edits = view.pivot, []
    for position, new in rendered.items():
        if position in view.marks or _is_cut_opening(pivot, position):
            place = body.places[skip + position]
            edits.append(Edit(place.start, place.end, new))
    if pivot is not None:
        messages = conversation.messages
        next_role = messages[pivot.covers].role if pivot.covers < messages.length else "none"
        first = body.places[skip + pivot.opening_end].start
        last = body.places[skip + pivot.covers - 1].end
        edits.append(Edit(first, last, render_summary(pivot, next_role)))
    return edits


def _is_cut_opening(pivot: Pivot | None, position: int) -> bool:
    return pivot is not None and pivot.opening_chars is not None and position < pivot.opening_end


def make_output_edit(body: RequestBody, output_tokens: int) -> Edit:
    """The clamped reply in place of the one that was asked for."""
    place = body.envelope.requested_slice
    if place is None:
        raise ValueError("no number to replace")
    return Edit(body.absolute(place.start), body.absolute(place.end), b"%d" % output_tokens)
