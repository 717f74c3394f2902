"""Responses: puts calls of the gateway's tool and their results back into the reply in which they were made.

They stand between the same two items as before. Each result stands behind its call.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from gateway.core.history.recall import RecallRound, ReplyMark
from gateway.wire.body import Slice, place_items
from gateway.wire.formats.responses.items import Item, role_of
from gateway.wire.formats.responses.recall_items import ITEM_ERRORS, is_thought, mark_items, parse_item
from gateway.wire.recall import Insertion
from gateway.wire.request import RequestBody

_MODEL: Final = ("assistant", "other")


class _ClientItem(NamedTuple):
    place: Slice
    item: Item


def splice(
    body: RequestBody, first: int, end: int, rounds: Sequence[RecallRound], mark: ReplyMark
) -> list[Insertion] | None:
    """See RecallSyntax. A message may be several items."""
    try:
        found = [each for index in range(first, end) for each in _list_items(body, body.places[index])]
        items = [each.item for each in found]
        if not rounds or not items or mark_items(items) != mark:
            return None
    except ITEM_ERRORS:
        return None
    if not all(role_of(item) in _MODEL for item in items):
        return None
    boundaries = _find_boundaries(items, rounds)
    inserted = []
    for boundary, each in zip(boundaries, rounds, strict=True):
        new = f"{each.call},{each.results}".encode()
        if boundary < len(found):
            inserted.append(Insertion(found[boundary].place.start, new + b","))
        else:
            inserted.append(Insertion(found[-1].place.end, b"," + new))
    return inserted


def _list_items(body: RequestBody, place: Slice) -> list[_ClientItem]:
    """Raises ITEM_ERRORS."""
    raw = body.data[place.start : place.end]
    places = place_items(b"[%s]" % raw)
    # The bracket was not there.
    moved = [Slice(place.start + each.start - 1, place.start + each.end - 1) for each in places]
    return [_ClientItem(each, parse_item(body.data[each.start : each.end])) for each in moved]


def _find_boundaries(items: Sequence[Item], rounds: Sequence[RecallRound]) -> list[int]:
    """Before which item each round stands. If that cannot be known, all stand before the reply."""
    found = [_find_boundary(items, each) for each in rounds]
    boundaries = [boundary for boundary in found if boundary is not None]
    is_ordered = all(before <= after for before, after in pairwise(boundaries))
    return boundaries if len(boundaries) == len(rounds) and is_ordered else [0] * len(rounds)


def _find_boundary(items: Sequence[Item], each: RecallRound) -> int | None:
    said = [not is_thought(item) for item in items]
    if each.shown <= len(items) and sum(said[: each.shown]) == each.said:
        return each.shown
    if all(said) and each.said <= len(items):
        # The client has dropped its reasoning.
        return each.said
    return None
