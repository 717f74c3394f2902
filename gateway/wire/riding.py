"""A summary that rides: the body of a conversation's request with one more user message at its end.

The provider has the prompt of that request in its cache, and reads it again for a fraction of the price. So
everything that is a part of the prompt keeps its bytes. Only fields beside the prompt change: the limit of
the reply, whether tools may be called, whether the response is stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.core.counts import is_count
from gateway.core.errors import BeyondBounds, Unreadable
from gateway.wire.body import JSON_ERRORS, Fields, mend_surrogates, split_fields
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.raw_json import encode_json

# Models that reason count their thinking against the limit: room beyond the summary itself.
THINKING_ALLOWANCE_TOKENS: Final = 8_192
# These mean the same as a missing field.
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {}, False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RidingRequest:
    """message: what the model is asked. Tokens: of the summary at most, and of a reply that the window holds
    beside the prompt.
    """

    message: str
    cap_tokens: int
    room_tokens: int


# The body of a riding request, made of the one that was sent. None if that body cannot be ridden.
Ride = Callable[[bytes, RidingRequest], bytes | None]


class RiddenBody:
    """Collects the changes of one body."""

    def __init__(self, data: bytes, fields: Fields) -> None:
        self._data = data
        self._fields = fields
        self._edits: list[Edit] = []
        # Of fields that the body does not have.
        self._added: list[bytes] = []

    @property
    def end(self) -> int:
        """Where the last message ends."""
        return self._fields.items[-1].end

    def parse_last(self) -> object:
        place = self._fields.items[-1]
        return _decode(self._data[place.start : place.end])

    def parse(self, key: str) -> object:
        """None for a missing field."""
        raw = self._fields.values.get(key)
        return _decode(raw) if raw is not None else None

    def has(self, *keys: str) -> bool:
        """Whether any of the fields says something."""
        return any(self.parse(key) not in _EMPTY for key in keys)

    def append(self, message: object) -> None:
        """Behind the last message."""
        self._edits.append(Edit(self.end, self.end, b"," + encode_json(message)))

    def set(self, key: str, value: object) -> None:
        raw, place = encode_json(value), self._fields.places.get(key)
        if place is not None:
            self._edits.append(Edit(place.start, place.end, raw))
        else:
            self._added.append(b",%s:%s" % (encode_json(key), raw))

    def limit_reply(self, keys: Sequence[str], least: int, room: int) -> bool:
        """Keeps the limit of the reply between these, if the request has one. False if that is impossible."""
        if least > room:
            return False
        key = next((key for key in keys if _is_count(self.parse(key))), None)
        if key is not None:
            limit = self.parse(key)
            wanted = min(max(limit, least), room) if isinstance(limit, int) else least
            if wanted != limit:
                self.set(key, wanted)
        return True

    def render(self) -> bytes:
        end = self._data.rindex(b"}")
        return apply_edits(self._data, [*self._edits, *(Edit(end, end, raw) for raw in self._added)])


def spare_tokens(request: RidingRequest) -> int:
    """For thinking. Only half of the remaining room, because the size of the prompt is an estimate."""
    return max(0, min(THINKING_ALLOWANCE_TOKENS, (request.room_tokens - request.cap_tokens) // 2))


def read_ridden(data: bytes, array_key: str) -> RiddenBody | None:
    """None for a body without an array of messages."""
    try:
        fields = split_fields(data, array_key)
    except (BeyondBounds, Unreadable):
        return None
    return RiddenBody(data, fields) if fields.items else None


def ride_or_none(make: Ride) -> Ride:
    """Whatever cannot be read cannot be ridden."""

    def ride(data: bytes, request: RidingRequest) -> bytes | None:
        try:
            return make(data, request)
        except (BeyondBounds, Unreadable, *JSON_ERRORS):
            return None

    return ride


def _decode(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        return msgspec.json.decode(mend_surrogates(raw))


def _is_count(value: object) -> bool:
    return is_count(value) and value > 0
