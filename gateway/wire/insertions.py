"""Where a recall stands in a received body: relative to the messages of its reply, and the one behind it.

Found once for the same bytes of these messages. A recall whose reply is not the one that the client was shown
is not inserted.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from gateway.core.history.recall import Recall
from gateway.core.history.shared_list import SharedList
from gateway.wire.body import Slice
from gateway.wire.recall import RecallSyntax
from gateway.wire.request import RequestBody


class Placed(NamedTuple):
    """`new` is inserted at an offset of one of the messages. Its edges are offsets, too."""

    message: int
    offset: int
    new: bytes


def find_placed(
    syntax: RecallSyntax, like: RequestBody, raws: Sequence[bytes], replies: int, recall: Recall
) -> tuple[Placed, ...] | None:
    """None if the recall has no place in these messages.

    raws: slices of the first message at its position and of those behind it, as they are sent; the first
    `replies` are the reply. like: the body that they are from.
    """
    if recall.kind == "found":
        inserted = b"".join(each.call.encode() + b"," for each in recall.rounds)
        return (Placed(0, 0, inserted),)
    if recall.reply is None or not replies:
        return None
    starts = list(accumulate((len(raw) + 1 for raw in raws), initial=1))
    places = [Slice(start, start + len(raw)) for start, raw in zip(starts, raws, strict=False)]
    data = b"[" + b",".join(raws) + b"]"
    small = RequestBody(data, like.envelope, SharedList(places), len(data) - 1, like.joins)
    found = syntax.splice(small, 0, replies, recall.rounds, recall.reply)
    if found is None:
        return None
    placed = []
    for at, new in found:
        message = max(index for index in range(len(raws)) if starts[index] <= at)
        placed.append(Placed(message, at - starts[message], new))
    return tuple(placed)
