"""One event of a Chat Completions stream: what it holds, and how it is rendered with a few values changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.core.errors import Unreadable
from gateway.wire.body import JsonFields
from gateway.wire.formats.chat.assistant_draft import REASONING_KEYS
from gateway.wire.formats.chat.call_tracker import TrackedCall
from gateway.wire.raw_json import decode_object, join_array, split_array, split_object, with_fields
from gateway.wire.response.facts import has_error
from gateway.wire.response.raw_events import RawEvent, with_data

_DONE: Final = b"[DONE]"
_CONTENT_KEYS: Final = ("content", "refusal", "audio", "function_call", *REASONING_KEYS)


@dataclass(slots=True)
class Chunk:
    """document, choice, delta: empty where it has none. has_failed: it tells of an error.

    calls: which call each piece of `delta.tool_calls` belongs to.
    """

    raw: bytes
    data: bytes
    document: JsonFields = field(default_factory=dict)
    choice: JsonFields = field(default_factory=dict)
    delta: JsonFields = field(default_factory=dict)
    calls: list[TrackedCall] = field(default_factory=list)
    has_failed: bool = False

    @property
    def pieces(self) -> list[object]:
        """Of tool calls."""
        pieces = self.delta.get("tool_calls")
        return pieces if isinstance(pieces, list) else []

    @property
    def finish_reason(self) -> str | None:
        reason = self.choice.get("finish_reason")
        return reason if isinstance(reason, str) and reason else None

    @property
    def is_done(self) -> bool:
        return self.data.strip() == _DONE

    @property
    def has_content(self) -> bool:
        """Something that the client shows. Calls are no content here."""
        return any(self.delta.get(key) for key in _CONTENT_KEYS)


def parse_chunk(found: RawEvent) -> Chunk | None:
    """None for an event that is not understood, or that has more than the first choice."""
    event = found.event
    if event is None:
        return None
    chunk = Chunk(found.raw, event.data, has_failed=event.name == "error")
    if chunk.is_done or chunk.has_failed:
        return chunk
    try:
        chunk.document = decode_object(event.data)
        chunk.has_failed = has_error(chunk.document)
    except Unreadable:
        return None
    match chunk.document.get("choices"):
        case []:
            return chunk
        case [dict(choice)] if choice.get("index") in (0, None) and "message" not in choice:
            delta = choice.get("delta")
            chunk.choice, chunk.delta = choice, delta if isinstance(delta, dict) else {}
            return chunk
    return chunk if chunk.has_failed else None


def split_pieces(chunk: Chunk) -> list[bytes]:
    """The bytes of `chunk.pieces`. Raises Unreadable for repeated keys."""
    return split_array(split_delta(chunk)["tool_calls"])


def split_delta(chunk: Chunk) -> dict[str, bytes]:
    """The bytes of each value. Raises Unreadable for repeated keys."""
    choices = split_object(chunk.data)["choices"]
    return split_object(split_object(split_array(choices)[0])["delta"])


def with_changes(
    chunk: Chunk,
    head: Mapping[str, bytes | None],
    choice: Mapping[str, bytes | None],
    delta: Mapping[str, bytes | None],
) -> bytes:
    """The event with other values, of the document, of its choice, and of its delta; None leaves one out.

    Raises Unreadable for repeated keys.
    """
    changes = dict(head)
    if choice or delta:
        raw = split_array(split_object(chunk.data)["choices"])[0]
        inner = dict(choice)
        if delta:
            inner["delta"] = with_fields(split_object(raw)["delta"], delta)
        changes["choices"] = join_array([with_fields(raw, inner)])
    # Between values a line end is a space; inside of texts it is always escaped.
    return with_data(chunk.raw, with_fields(chunk.data, changes).replace(b"\n", b" "))
