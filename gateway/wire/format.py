"""A wire format: everything that differs between the APIs that clients use, and what its functions take.

Knows none of the formats: `wire.registry` lists them. How a response is read does not belong to a format,
because servers mix the shapes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import msgspec

from gateway.core.counts import is_count
from gateway.core.errors import BeyondBounds, RequestRefused, Unreadable
from gateway.core.history.message import Message
from gateway.core.history.pivot import Mark, Pivot, list_turns
from gateway.core.history.transcript import TranscriptEntry
from gateway.wire.body import (
    JSON_ERRORS,
    UNBOUNDED,
    BodyBounds,
    Envelope,
    Fields,
    RequestBody,
    parse_value,
    split_fields,
    split_fields_or_text,
    split_request,
)
from gateway.wire.content import Content, make_entry, make_message
from gateway.wire.edits import Edit, apply_edits, encode_json
from gateway.wire.reading import read_value
from gateway.wire.references import StoredHistory

# Models that reason count their thinking against the limit: room beyond the summary itself.
THINKING_ALLOWANCE_TOKENS: Final = 8_192
# These mean the same as a missing field.
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {}, False)
_DATA: Final = b"data:"


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryRequest:
    """A request for a summary, before it is written in a wire format."""

    model: str
    # May be empty.
    system: str
    # The parts of the one user message, with the instruction last.
    parts: tuple[str, ...]
    # The key under which the model takes the limit of its reply.
    output_key: str
    # Tokens of reply: as many as wanted, and as many as fit.
    cap: int
    room: int
    # See Envelope.identity_blocks. Only for APIs that have a place for them.
    identity_blocks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalResponse:
    """A response that the gateway gives without an upstream: one text.

    It cost no tokens. A format whose clients need usage says 0, the others leave usage out.
    """

    # Without the prefix that each format puts before it.
    id: str
    model: str
    created_seconds: int
    text: str
    # As the client asked for it.
    is_streamed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RidingRequest:
    """A request for a summary that rides, at the end of a body that was sent: a user message of its own, or
    more text of the last one if that is the user's.

    message: what the model is asked. Tokens: of the summary at most, and of a reply that the window holds
    beside the prompt.
    """

    message: str
    cap_tokens: int
    room_tokens: int


class Format(ABC):
    """Raw bytes of a message are one slice of the body, see RequestBody."""

    # Part of settings and of every fingerprint chain, so it never changes.
    name: ClassVar[str]
    # Where its requests are posted.
    path: ClassVar[str]
    # The key of the messages.
    array: ClassVar[str] = "messages"
    # The usual key of the reply's limit.
    output_key: ClassVar[str] = "max_tokens"
    # Keeps a waiting client from giving up; may be sent between any two events of a stream.
    keepalive: ClassVar[bytes]
    # The type of a part of a user message that is text.
    text_part: ClassVar[str] = "text"
    # Headers that the API requires in every request.
    headers: ClassVar[tuple[tuple[str, str], ...]] = ()
    # None if requests always hold the whole history.
    stored_history: ClassVar[StoredHistory | None] = None

    def parse_body(self, data: bytes, bounds: BodyBounds = UNBOUNDED) -> RequestBody:
        """Splits a body. Raises Unreadable, and BeyondBounds for one that holds too much."""
        return split_request(data, self.array, self.read_envelope, bounds=bounds)

    def parse_message(self, raw: bytes, key: bytes) -> Message:
        """The facts of one slice. key: its message_key. Raises Unreadable."""
        return make_message(self.read(raw), key, len(raw))

    def parse_entry(self, raw: bytes) -> TranscriptEntry:
        """The texts of a slice that `parse_message` has accepted."""
        return make_entry(self.read(raw))

    def render_summary(self, pivot: Pivot, next_role: str) -> bytes:
        """The messages that stand for what the pivot covers. next_role: of the message after them."""
        return self.write_turns(list_turns(pivot, next_role))

    def ride(self, data: bytes, request: RidingRequest) -> bytes | None:
        """The body that was sent upstream, with a request for a summary at its end. None if it cannot be
        ridden.

        The provider has the prompt of that request in its cache, and reads it again for a fraction of the
        price. So everything that is a part of the prompt keeps its bytes. Only fields beside the prompt
        change: the limit of the reply, whether tools may be called, whether the response is stored.
        """
        try:
            body = read_ridden(data, self.array)
            return body.render() if body is not None and self.may_ride(body, request) else None
        except (BeyondBounds, Unreadable, *JSON_ERRORS):
            return None

    @abstractmethod
    def read_envelope(self, fields: Fields) -> Envelope:
        """Raises Unreadable."""

    @abstractmethod
    def read(self, raw: bytes) -> Content:
        """Raises Unreadable."""

    @abstractmethod
    def write_turns(self, turns: Iterable[tuple[str, str]]) -> bytes:
        """Messages by role and text, as JSON separated by commas."""

    @abstractmethod
    def render_marked(self, raw: bytes, mark: Mark, placeholder: str) -> bytes:
        """The slice with its results cleared (to the placeholder) or shortened.

        The content stays of its type. Clearing also removes attachments. All other fields are kept. If
        nothing changes, the bytes stay the same.
        """

    @abstractmethod
    def may_ride(self, body: "RiddenBody", request: RidingRequest) -> bool:
        """Adds the question to a body, and changes its fields. False if it cannot be ridden."""

    def ask(self, body: "RiddenBody", question: str) -> None:
        """Two user messages in a row are refused by some templates and strict forms of the API."""
        if not body.join(question, self.text_part):
            body.append(self.write_turns([("user", question)]))

    @abstractmethod
    def render_summary_request(self, request: SummaryRequest) -> bytes: ...

    @abstractmethod
    def render_local_response(self, response: LocalResponse) -> bytes:
        """As a stream or as one body, as the client asked for it."""

    def render_error(self, error: RequestRefused) -> bytes:
        """OpenAI's shape, which Chat Completions and Responses share."""
        return render_openai_error(error)

    def render_stream_error(self, upstream_body: bytes, status: int) -> bytes:
        """An upstream's error as one event of a stream that has begun: its own error object if it has one."""
        return b"data: " + msgspec.json.encode(parse_error(upstream_body) or make_error(status)) + b"\n\n"


def render_openai_error(error: RequestRefused) -> bytes:
    body = {"message": str(error), "type": error.kind, "param": None, "code": error.code}
    return msgspec.json.encode({"error": body})


def make_error(status: int) -> dict[str, object]:
    """For an upstream that gave no error object."""
    error = {"message": describe_failure(status), "type": "upstream_error", "param": None, "code": status}
    return {"error": error}


def describe_failure(status: int) -> str:
    return f"upstream answered {status} after the stream had begun"


def parse_error(upstream_body: bytes) -> dict[str, object] | None:
    """The object that holds the error: the whole body, or one of the events in it."""
    lines = [line[len(_DATA) :] for line in upstream_body.splitlines() if line.startswith(_DATA)]
    return next(filter(None, map(_parse_error, (upstream_body, *lines))), None)


def _parse_error(data: bytes) -> dict[str, object] | None:
    decoded = read_value(data)
    if not isinstance(decoded, dict):
        return None
    # In Responses the error is inside the failed response, or the event itself is the error.
    is_error = decoded.get("type") == "error" and "message" in decoded
    places: tuple[object, ...] = (decoded, decoded.get("response"), {"error": decoded} if is_error else None)
    for place in places:
        if isinstance(place, dict) and isinstance(place.get("error"), dict):
            return place
    return None


class RiddenBody:
    """Collects the changes of one body."""

    def __init__(self, data: bytes, fields: Fields) -> None:
        self.data = data
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
        return parse_value(self.data[place.start : place.end])

    def parse(self, key: str) -> object:
        """None for a missing field."""
        raw = self._fields.values.get(key)
        return parse_value(raw) if raw is not None else None

    def has(self, *keys: str) -> bool:
        """Whether any of the fields says something."""
        return any(self.parse(key) not in _EMPTY for key in keys)

    def append(self, message: bytes) -> None:
        """Behind the last message."""
        self._insert(self.end, b"," + message)

    def join(self, text: str, part_type: str) -> bool:
        """Adds the text to the last message. False if that is not the user's, or holds nothing."""
        last, start = self.parse_last(), self._fields.items[-1].start
        if not isinstance(last, dict) or last.get("role") != "user":
            return False
        content = last.get("content")
        if not content or not isinstance(content, str | list):
            return False
        parts = split_fields_or_text(self.data[start : self.end], "content").items
        if isinstance(content, str):
            self._insert(start + parts[0].end - 1, encode_json("\n\n" + text)[1:-1])
        else:
            self._insert(start + parts[-1].end, b"," + encode_json({"type": part_type, "text": text}))
        return True

    def _insert(self, at: int, raw: bytes) -> None:
        self._edits.append(Edit(at, at, raw))

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
        limits = ((key, self.parse(key)) for key in keys)
        key, limit = next(((key, limit) for key, limit in limits if is_count(limit) and limit), ("", 0))
        wanted = min(max(limit, least), room)
        if key and wanted != limit:
            self.set(key, wanted)
        return True

    def render(self) -> bytes:
        end = self.data.rindex(b"}")
        return apply_edits(self.data, [*self._edits, *(Edit(end, end, raw) for raw in self._added)])


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
