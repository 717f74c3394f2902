"""Messages: requests that continue a thread, whose history the upstream holds.

`{"type": "create"}` asks the upstream to hold the conversation under the id of the response. `{"type":
"continue", "previous_message_id": ID}` brings only new messages; system prompt and tools are the thread's.
This module writes such a request out; `conversations.stored_responses` remembers what the ids stand for.
"""

from typing import Final

import msgspec

from gateway.core.errors import BeyondBounds
from gateway.wire.body import (
    JSON_ERRORS,
    Fields,
    mend_surrogates,
    parse_raw_fields,
    read_or_none,
    split_fields,
)
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.messages.message_collector import MessageCollector
from gateway.wire.formats.messages.names import find_given_names, find_used_names
from gateway.wire.references import Expanded, NamedHistory, StoredHistory, StoredNames, UsedNames

_CREATE: Final = b'{"type":"create"}'
# What a `continue` takes from its thread, and must not repeat.
_CREATE_ONLY: Final = ("system", "tools")
_MARK: Final = "cache_control"
# Where blocks stand inside of messages and blocks; the SDKs look for marks in the same places.
_PLACES_OF_BLOCKS: Final = ("content", "source", "tool", "definition", "tool_references")

_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Thread(msgspec.Struct):
    type: str
    previous_message_id: str | None = None


_thread_decoder: Final[msgspec.json.Decoder[_Thread | None]] = msgspec.json.Decoder(_Thread | None)


def find_names(data: bytes) -> UsedNames | None:
    """The response that a body continues. None if it is not understood."""
    return read_or_none(_find_names, data)


def _find_names(data: bytes) -> UsedNames:
    return UsedNames(_find_previous(split_fields(data, "messages")))


def expand(data: bytes, names: StoredNames) -> Expanded | None:
    """The request with its whole history, to be sent under a new thread. None if its thread is unknown.

    Raises BeyondBounds as the names do.
    """
    return read_or_none(_expand, data, names)


def _expand(data: bytes, names: StoredNames) -> Expanded | None:
    fields = split_fields(data, "messages")
    previous = _find_previous(fields)
    if previous is None:
        return Expanded(data, None, data)
    before = names.find_response(previous)
    if before is None or any(key in fields.values for key in _CREATE_ONLY):
        return None
    added = [data[place.start : place.end] for place in fields.items]
    edits = _make_edits(data, fields, before, added)
    return Expanded(apply_edits(data, edits), previous, b'{"messages":[%s]}' % b",".join(added))


def _find_previous(fields: Fields) -> str | None:
    """None for a request that brings its whole history. Raises ValueError for a thread of another kind."""
    thread = _thread_decoder.decode(fields.values.get("thread", b"null"))
    if thread is None or thread.type == "create":
        return None
    if thread.type != "continue" or thread.previous_message_id is None:
        raise ValueError("a thread that is neither created nor continued")
    return thread.previous_message_id


def _make_edits(data: bytes, fields: Fields, before: NamedHistory, added: list[bytes]) -> list[Edit]:
    """System prompt and tools come first, so that the bytes of one request begin those of the next."""
    first = split_fields(before.first, "messages").values
    inherited = b"".join(b'"%s":%s,' % (key.encode(), first[key]) for key in _CREATE_ONLY if key in first)
    start = data.index(b"{") + 1
    array, thread = fields.places["messages"], fields.places["thread"]
    messages = b"[%s]" % b",".join([*before.items, *added])
    return [
        Edit(start, start, inherited),
        Edit(array.start, array.end, messages),
        Edit(thread.start, thread.end, _CREATE),
    ]


def list_messages(own: bytes) -> list[bytes]:
    """The messages of a body, without the cache marks of their blocks.

    A mark is set for the request that brings it, and a request may hold only a few.
    """
    fields = split_fields(own, "messages")
    return [without_marks(own[place.start : place.end]) for place in fields.items]


def without_marks(raw: bytes) -> bytes:
    """A message without `cache_control` in it. The same bytes if it has none, or cannot be read."""
    try:
        return _without_marks(raw)
    except (*JSON_ERRORS, BeyondBounds):
        return raw


def _without_marks(raw: bytes) -> bytes:
    if b'"cache_control"' not in raw:
        return raw
    if raw.startswith(b"["):
        items = _decode_items(mend_surrogates(raw))
        return b"[%s]" % b",".join(_without_marks(bytes(item)) for item in items)
    if not raw.startswith(b"{"):
        return raw
    fields = parse_raw_fields(raw)
    fields.pop(_MARK, None)
    for key in fields.keys() & set(_PLACES_OF_BLOCKS):
        fields[key] = msgspec.Raw(_without_marks(bytes(fields[key])))
    return msgspec.json.encode(fields)


def _is_never_a_name(_: bytes) -> bool:
    """Messages name nothing inside the array."""
    return False


STORED_HISTORY: Final = StoredHistory(
    find_names=find_names,
    expand=expand,
    list_items=list_messages,
    collect=MessageCollector,
    may_be_name=_is_never_a_name,
    find_used_paths=find_used_names,
    find_given_names=find_given_names,
    unknown_status=404,
    unknown_code="thread_not_found",
    is_replayed=True,
)
