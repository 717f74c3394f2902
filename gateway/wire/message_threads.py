"""Messages: requests that continue a thread, whose history the upstream holds, and its responses.

`{"type": "create"}` asks the upstream to hold the conversation under the id of the response. `{"type":
"continue", "previous_message_id": ID}` brings only new messages; system prompt and tools are the thread's.
This module writes such a request out; `conversations.stored_responses` remembers what the ids stand for.

Where one key serves all tenants, such an id is a way to what another tenant said. So the names are read with
suspicion: a body that cannot be read here must not be one that the upstream reads.
"""

import re
from typing import Final

import msgspec

from gateway.core.errors import BeyondBounds, Unreadable
from gateway.wire.body import (
    JSON_ERRORS,
    BodyBounds,
    Fields,
    mend_surrogates,
    parse_raw_fields,
    read_or_none,
    split_fields,
)
from gateway.wire.edits import Edit, apply_edits, join_halves
from gateway.wire.references import (
    Expanded,
    NamedHistory,
    StoredHistory,
    StoredNames,
    StoredResponse,
    UsedNames,
)
from gateway.wire.sse import SseEvent

_PREVIOUS: Final = "previous_message_id"
# A letter that is written as an escape. No serializer does that.
_ESCAPED: Final = re.compile(rb"\\u00[4-7]")


class _Message(msgspec.Struct):
    id: str | None = None


class _ThreadNamingEvent(msgspec.Struct):
    """The first event of a stream, or a whole body, which is a message itself."""

    type: str = ""
    message: _Message | None = None
    id: str | None = None


_decode_naming_event = msgspec.json.Decoder(_ThreadNamingEvent).decode


def find_used_names(body: bytes, bounds: BodyBounds) -> set[str]:
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
    threads = [msgspec.json.decode(raw) for key, raw in fields.values.items() if key.lower() == "thread"]
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
        parsed = _decode_naming_event(event.data)
    except JSON_ERRORS:
        return set()
    name = parsed.message.id if parsed.type == "message_start" and parsed.message is not None else None
    name = parsed.id if parsed.type == "message" else name
    return {name} if name else set()


# A million tokens, more than any reply. A larger response is not collected.
_MAX_BYTES: Final = 4 * 1024 * 1024
_NULL: Final = b"null"
_NO_CONTENT: Final = b"[]"


class BlockDelta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw(_NULL)
    encrypted_content: msgspec.Raw = msgspec.Raw(_NULL)


class _Started(msgspec.Struct, gc=False):
    id: str
    content: msgspec.Raw = msgspec.Raw(_NO_CONTENT)


class _MessageEvent(msgspec.Struct, gc=False):
    """An event of a stream, or a whole body, which is a message itself."""

    type: str = ""
    index: int = -1
    message: _Started | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    delta: BlockDelta | None = None
    # Of a whole body.
    id: str = ""
    content: msgspec.Raw = msgspec.Raw(_NO_CONTENT)


_decode_event = msgspec.json.Decoder(_MessageEvent).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class GrowingBlock:
    """A content block that grows with its deltas."""

    def __init__(self, raw: msgspec.Raw) -> None:
        """Raises ValueError, KeyError or RecursionError for what is no block."""
        self._fields = parse_raw_fields(bytes(raw))
        self._kind: str = msgspec.json.decode(self._fields["type"])
        self._pieces: list[str] = []
        self._citations: list[msgspec.Raw] = []
        self._key = ""

    def add(self, delta: BlockDelta) -> None:
        """Raises ValueError for a delta that is not known."""
        match delta.type:
            case "text_delta" if self._kind == "text":
                self._append("text", delta.text)
            case "thinking_delta" if self._kind == "thinking":
                self._append("thinking", delta.thinking)
            case "signature_delta" if self._kind == "thinking":
                self._fields["signature"] = _encode(delta.signature)
            case "input_json_delta":
                self._append("input", delta.partial_json)
            case "citations_delta" if self._kind == "text":
                self._citations.append(delta.citation)
            case "compaction_delta" if self._kind == "compaction":
                self._fields |= {"content": delta.content, "encrypted_content": delta.encrypted_content}
            case _:
                raise ValueError(f"a {delta.type} in a {self._kind}")

    def _append(self, key: str, piece: str) -> None:
        self._key = key
        self._pieces.append(piece)

    def render(self) -> bytes:
        """Raises ValueError for the input of a call that is not JSON: the reply was cut inside it."""
        # A piece may end inside an emoji.
        grown = join_halves("".join(self._pieces))
        if self._key == "input" and grown:
            msgspec.json.decode(grown, type=dict[str, msgspec.Raw])
            self._fields["input"] = msgspec.Raw(grown.encode())
        elif self._key in ("text", "thinking"):
            begun = msgspec.json.decode(self._fields.get(self._key, msgspec.Raw(b'""')), type=str)
            self._fields[self._key] = _encode(begun + grown)
        if self._citations:
            begun_citations = bytes(self._fields.get("citations", msgspec.Raw(_NULL)))
            cited = [] if begun_citations == _NULL else _decode_items(begun_citations)
            self._fields["citations"] = msgspec.Raw(msgspec.json.encode([*cited, *self._citations]))
        return msgspec.json.encode(self._fields)


class MessageCollector:
    """Puts a response together as the message that stands for it in a later request.

    From a stream block by block, exactly as the official SDKs do, and from a whole body at once. A response
    that cannot be put together for certain is none.
    """

    def __init__(self) -> None:
        self._name: str | None = None
        self._blocks: list[bytes] = []
        self._open: GrowingBlock | None = None
        self._room = _MAX_BYTES
        self._has_failed = False

    def feed(self, event: SseEvent) -> StoredResponse | None:
        """The response, once, at the event that completes it. Never raises."""
        if self._has_failed:
            return None
        self._room -= len(event.data)
        try:
            if self._room < 0:
                raise ValueError("too large")
            return self._collect(_decode_event(event.data))
        except (ValueError, KeyError, RecursionError):
            self._has_failed = True
            self._blocks.clear()
            self._open = None
            return None

    def _collect(self, event: _MessageEvent) -> StoredResponse | None:
        match event.type:
            case "message":
                return _make_response(event.id, [bytes(raw) for raw in _decode_items(event.content)])
            case "message_start" if event.message is not None and self._name is None:
                self._name = event.message.id
                self._blocks = [bytes(raw) for raw in _decode_items(event.message.content)]
            case "content_block_start" if event.index == len(self._blocks) and self._open is None:
                self._open = GrowingBlock(event.content_block)
            case "content_block_delta" if self._open is not None and event.delta is not None:
                self._open.add(event.delta)
            case "content_block_stop" if self._open is not None:
                self._blocks.append(self._open.render())
                self._open = None
            case "message_stop" if self._name is not None and self._open is None:
                return _make_response(self._name, self._blocks)
            case "ping" | "message_delta":
                pass
            case _:
                raise ValueError(f"an event {event.type} that is not understood here")
        return None


def _make_response(name: str, blocks: list[bytes]) -> StoredResponse | None:
    if not name:
        raise ValueError("a message without an id")
    # The API refuses a message without content.
    items = (b'{"role":"assistant","content":[%s]}' % b",".join(blocks),) if blocks else ()
    return StoredResponse(name, items, (None,) * len(items))


def _encode(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


_CREATE: Final = b'{"type":"create"}'
# What a `continue` takes from its thread, and must not repeat.
_CREATE_ONLY: Final = ("system", "tools")
_MARK: Final = "cache_control"
# Where blocks stand inside of messages and blocks; the SDKs look for marks in the same places.
_PLACES_OF_BLOCKS: Final = ("content", "source", "tool", "definition", "tool_references")


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
