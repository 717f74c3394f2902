"""A request can be too large in bytes or in pictures, too, long before its tokens fill the window.

Near such a limit a message weighs what it takes of the limit that it presses on most, told in tokens of the
window: then lines, cuts and marks mean what they always mean. Knows sizes; not what is done about them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.core.history.message import Message
from gateway.core.history.view import Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.estimate import Calibration, Known, Sizes

# Of the limit: below this neither bytes nor pictures decide anything.
_IN_SIGHT = 0.5
# The window where nobody knows it: any number does, for only shares of it count.
_NO_WINDOW_TOKENS = 1_000_000
# The weights are exact: nothing is to be learned about them.
_EXACT = Known(head=None, head_view=View(None, {}), calibration=Calibration(1.0, 1))


@dataclass(frozen=True, slots=True)
class Payload:
    """What one request weighs beside its tokens. body_bytes: of all; the rest is leading block and tools."""

    body_bytes: int
    messages: Sequence[Message]


def is_near_limit(limits: Limits, bulk: Payload) -> bool:
    """Could bytes or pictures decide? Without counting pictures: one that is there may be many."""
    if limits.body_bytes and bulk.body_bytes > _IN_SIGHT * limits.body_bytes:
        return True
    return bool(limits.images) and any(message.has_media for message in bulk.messages)


def with_payload(sizes: Sizes, known: Known, limits: Limits, bulk: Payload) -> tuple[Sizes, Known, Limits]:
    """The same request in sizes that hold bytes and pictures, too; unchanged where those are far away."""
    pictures = sum(size.media for size in sizes.messages)
    presses = limits.body_bytes and bulk.body_bytes > _IN_SIGHT * limits.body_bytes
    if not presses and not (limits.images and pictures > _IN_SIGHT * limits.images):
        return sizes, known, limits
    window = limits.context or limits.input or _NO_WINDOW_TOKENS
    per_byte = window / limits.body_bytes if limits.body_bytes else 0.0
    per_picture = window / limits.images if limits.images else 0.0
    ratio = known.calibration.ratio
    messages = [
        _weigh_message(size, message.size_bytes * per_byte, size.media * per_picture, ratio)
        for size, message in zip(sizes.messages, bulk.messages, strict=True)
    ]
    around = bulk.body_bytes - sum(message.size_bytes for message in bulk.messages)
    environment = int(max(sizes.environment * ratio, around * per_byte))
    scaled = Sizes(messages=messages, environment=environment)
    return scaled, _EXACT, replace(limits, context=window)


def _weigh_message(size: Size, by_bytes: float, by_pictures: float, ratio: float) -> Size:
    weight = int(max(size.tokens * ratio, by_bytes, by_pictures))
    return Size(weight, size.chars, size.media, size.kept * weight // max(size.tokens, 1))
