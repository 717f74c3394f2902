"""Requests that are too large in bytes or in pictures, although their tokens fit the window.

Near such a limit a message counts for its share of the scarcest limit, expressed in tokens of the window.
Then thresholds, cuts and marks work as usual. Knows sizes only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.core.history.message import Message
from gateway.core.history.view import Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.estimate import Calibration, Known, Sizes

# Bytes and pictures are ignored below this share of their limit.
_NEAR_SHARE: Final = 0.5
# Stands for an unknown window; any number works, because only shares of it are used.
_STAND_IN_WINDOW_TOKENS: Final = 1_000_000
# Scaled sizes are exact, so there is nothing to calibrate.
_EXACT: Final = Known(head=None, head_view=View(None, {}), calibration=Calibration(1.0, 1))


@dataclass(frozen=True, slots=True)
class Payload:
    """The size of one request apart from its tokens. What is not in messages is leading block and tools."""

    body_bytes: int
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    sizes: Sizes
    known: Known
    limits: Limits


def is_near_limit(limits: Limits, payload: Payload) -> bool:
    """Whether bytes or pictures could matter. Pictures are not counted: one message may have many."""
    if _is_large(limits, payload):
        return True
    return bool(limits.images) and any(message.has_media for message in payload.messages)


def with_payload(request: MeasuredRequest, payload: Payload) -> MeasuredRequest:
    """The request in sizes that include bytes and pictures; the same object if neither is near its limit."""
    sizes, limits = request.sizes, request.limits
    pictures = sum(size.media for size in sizes.messages)
    has_many_pictures = limits.images and pictures > _NEAR_SHARE * limits.images
    if not _is_large(limits, payload) and not has_many_pictures:
        return request
    window = limits.context or limits.input or _STAND_IN_WINDOW_TOKENS
    per_byte = window / limits.body_bytes if limits.body_bytes else 0.0
    per_picture = window / limits.images if limits.images else 0.0
    ratio = request.known.calibration.ratio
    messages = [
        _scale_message(size, message.size_bytes * per_byte, size.media * per_picture, ratio)
        for size, message in zip(sizes.messages, payload.messages, strict=True)
    ]
    other_bytes = payload.body_bytes - sum(message.size_bytes for message in payload.messages)
    environment = int(max(sizes.environment * ratio, other_bytes * per_byte))
    scaled = Sizes(messages=messages, environment=environment)
    return MeasuredRequest(scaled, _EXACT, replace(limits, context=window))


def _is_large(limits: Limits, payload: Payload) -> bool:
    return limits.body_bytes is not None and 0 < _NEAR_SHARE * limits.body_bytes < payload.body_bytes


def _scale_message(size: Size, by_bytes: float, by_pictures: float, ratio: float) -> Size:
    tokens = int(max(size.tokens * ratio, by_bytes, by_pictures))
    return Size(tokens, size.chars, size.media, size.kept * tokens // max(size.tokens, 1))
