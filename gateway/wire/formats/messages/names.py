"""Messages: the response of a thread that a request names, and the id that a response gives.

Where one key serves all tenants, such an id is a way to what another tenant said. So this reads with
suspicion: a body that it cannot read must not be one that the upstream reads.
"""

import re
from typing import Final

import msgspec

from gateway.core.errors import Unreadable
from gateway.wire.body import JSON_ERRORS, UNBOUNDED, BodyBounds, split_fields
from gateway.wire.sse import SseEvent

_PREVIOUS: Final = "previous_message_id"
_THREAD: Final = "thread"
# A letter that is written as an escape. No serializer does that.
_ESCAPED: Final = re.compile(rb"\\u00[4-7]")


class _Message(msgspec.Struct):
    id: str | None = None


class _ThreadNamingEvent(msgspec.Struct):
    """The first event of a stream, or a whole body, which is a message itself."""

    type: str = ""
    message: _Message | None = None
    id: str | None = None


_decode_event = msgspec.json.Decoder(_ThreadNamingEvent).decode


def find_used_names(body: bytes, bounds: BodyBounds = UNBOUNDED) -> set[str]:
    """The response whose thread a request continues, as its path: `messages/ID`.

    Raises Unreadable for a body that may name one in a way that is not understood, or beyond the bounds.
    """
    if not _may_name(body):
        return set()
    try:
        return _find_used_names(body, bounds)
    except JSON_ERRORS as error:
        raise Unreadable("the body may name a thread") from error


def _may_name(body: bytes) -> bool:
    """False for nearly every request, after 1 ms for a megabyte: it holds neither the word, nor an escaped
    letter, nor the NUL bytes of another encoding than UTF-8.
    """
    return b"\0" in body or _PREVIOUS.encode() in body.lower() or _ESCAPED.search(body) is not None


def _find_used_names(body: bytes, bounds: BodyBounds) -> set[str]:
    fields = split_fields(body, "messages", bounds)
    # Some servers take keys in any case.
    threads = [msgspec.json.decode(raw) for key, raw in fields.values.items() if key.lower() == _THREAD]
    names = [
        name
        for thread in threads
        if isinstance(thread, dict)
        for key, name in thread.items()
        if key.lower() == _PREVIOUS and name is not None
    ]
    if not all(isinstance(name, str) for name in names):
        raise Unreadable("a name that is not text")
    return {f"messages/{name}" for name in names}


def find_given_names(event: SseEvent) -> set[str]:
    """The message that the first event of a response names. Never raises."""
    if event.name not in ("", "message", "message_start"):
        return set()
    try:
        parsed = _decode_event(event.data)
    except JSON_ERRORS:
        return set()
    name = parsed.message.id if parsed.type == "message_start" and parsed.message is not None else None
    name = parsed.id if parsed.type == "message" else name
    return {name} if name else set()
