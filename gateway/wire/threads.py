"""Messages: requests that continue a thread, whose history the upstream holds, and its responses.

`{"type": "create"}` asks the upstream to hold the conversation under the id of the response. `{"type":
"continue", "previous_message_id": ID}` brings only new messages; system prompt and tools are the thread's.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from gateway.core.errors import BeyondBounds
from gateway.wire.body import (
    JSON_ERRORS,
    BodyBounds,
    Fields,
    mend_surrogates,
    or_none,
    parse_raw_fields,
    split_fields,
)
from gateway.wire.edits import Edit, apply_edits, join_halves
from gateway.wire.reading import ResponseDocument, read_nested, read_text, read_value
from gateway.wire.references import (
    Expanded,
    ResponseCollector,
    StoredHistory,
    StoredNames,
    StoredResponse,
    UsedNames,
)

_NULL: Final = b"null"
_decode = msgspec.json.Decoder().decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode


class _BlockDelta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    citation: Raw = Raw()
    content: Raw = Raw(_NULL)
    encrypted_content: Raw = Raw(_NULL)


_decode_delta = msgspec.json.Decoder(_BlockDelta).decode


class _GrowingBlock:
    """A content block that grows with its deltas."""

    def __init__(self, raw: Raw) -> None:
        """Raises ValueError, KeyError or RecursionError for what is no block."""
        self._fields = parse_raw_fields(bytes(raw))
        self._kind: str = _decode(self._fields["type"])
        self._pieces: list[str] = []
        self._citations: list[Raw] = []
        self._key = ""

    def add(self, delta: _BlockDelta) -> None:
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
            msgspec.json.decode(grown, type=dict[str, Raw])
            self._fields["input"] = Raw(grown.encode())
        elif self._key in ("text", "thinking"):
            begun = msgspec.json.decode(self._fields.get(self._key, Raw(b'""')), type=str)
            self._fields[self._key] = _encode(begun + grown)
        if self._citations:
            begun_citations = self._fields.get("citations", Raw(_NULL))
            cited = [] if begun_citations == Raw(_NULL) else _decode_list(begun_citations)
            self._fields["citations"] = Raw(msgspec.json.encode([*cited, *self._citations]))
        return msgspec.json.encode(self._fields)


def _encode(text: str) -> Raw:
    return Raw(msgspec.json.encode(text))


class _BlockCollector(ResponseCollector):
    """Of Messages: from a stream block by block, exactly as the official SDKs do, and from a whole body at
    once, which is a message itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._name = ""
        self._open: _GrowingBlock | None = None

    def _collect(self, documents: Sequence[ResponseDocument]) -> StoredResponse | None:
        if len(documents) != 1:
            raise ValueError("an event that is not understood")
        (document,) = documents
        match document.type:
            case "message":
                self._begin(document)
                return self._finish()
            case "message_start" if not self._name:
                self._begin(read_nested(document.message))
            case "content_block_start" if self._is_next(document) and self._open is None:
                self._open = _GrowingBlock(self._take(document.content_block))
            case "content_block_delta" if self._open is not None:
                self._open.add(_decode_delta(self._take(document.delta)))
            case "content_block_stop" if self._open is not None:
                self._items.append(self._open.render())
                self._open = None
            case "message_stop" if self._name and self._open is None:
                return self._finish()
            case "ping" | "message_delta":
                pass
            case _:
                raise ValueError(f"an event {document.type} that is not understood here")
        return None

    def _is_next(self, document: ResponseDocument) -> bool:
        return read_value(document.index) == len(self._items)

    def _begin(self, message: ResponseDocument) -> None:
        self._name = read_text(message.id)
        if not self._name:
            raise ValueError("a message without an id")
        self._items = [bytes(raw) for raw in _decode_list(self._take(message.content) or b"[]")]

    def _finish(self) -> StoredResponse:
        self._room = -1
        content = b",".join(self._items)
        # The API refuses a message without content.
        items = (b'{"role":"assistant","content":[%s]}' % content,) if self._items else ()
        return StoredResponse(self._name, items, (None,) * len(items))


class _Thread(msgspec.Struct):
    type: str
    previous_message_id: str | None = None


_thread_decoder: Final[msgspec.json.Decoder[_Thread | None]] = msgspec.json.Decoder(_Thread | None)


class _Threads(StoredHistory):
    """Messages name nothing inside the array."""

    unknown_status = 404
    unknown_code = "thread_not_found"
    is_replayed = True
    collect = _BlockCollector
    _words = (b"previous_message_id",)

    _CREATE: Final = b'{"type":"create"}'
    # What a `continue` takes from its thread, and must not repeat.
    _CREATE_ONLY: Final = ("system", "tools")

    def _list_used(self, body: bytes, bounds: BodyBounds) -> Iterator[tuple[str, object]]:
        fields = split_fields(body, "messages", bounds)
        threads = [_decode(raw) for key, raw in fields.values.items() if key.lower() == "thread"]
        for thread in threads:
            for key, name in thread.items() if isinstance(thread, dict) else ():
                if key.lower() == "previous_message_id":
                    yield "messages", name

    def find_given_names(self, documents: Sequence[ResponseDocument]) -> set[str]:
        document = documents[0] if len(documents) == 1 else ResponseDocument()
        is_start, is_whole = document.type == "message_start", document.type == "message"
        message = read_nested(document.message) if is_start else document
        name = read_text(message.id) if is_start or is_whole else ""
        return {name} if name else set()

    @or_none
    def find_names(self, data: bytes) -> UsedNames:
        return UsedNames(self._find_previous(split_fields(data, "messages")))

    def _find_previous(self, fields: Fields) -> str | None:
        """None for a request that brings its whole history. Raises ValueError for another kind of thread."""
        thread = _thread_decoder.decode(fields.values.get("thread", _NULL))
        if thread is None or thread.type == "create":
            return None
        if thread.type != "continue" or thread.previous_message_id is None:
            raise ValueError("a thread that is neither created nor continued")
        return thread.previous_message_id

    @or_none
    def expand(self, data: bytes, names: StoredNames) -> Expanded | None:
        """To be sent under a new thread. System prompt and tools come first, so that the bytes of one request
        begin those of the next.
        """
        fields = split_fields(data, "messages")
        previous = self._find_previous(fields)
        if previous is None:
            return Expanded(data, None, data)
        before = names.find_response(previous)
        if before is None or any(key in fields.values for key in self._CREATE_ONLY):
            return None
        added = [data[place.start : place.end] for place in fields.items]
        first = split_fields(before.first, "messages").values
        inherited = [b'"%s":%s,' % (key.encode(), first[key]) for key in self._CREATE_ONLY if key in first]
        start, array, thread = data.index(b"{") + 1, fields.array, fields.places["thread"]
        edits = [
            Edit(start, start, b"".join(inherited)),
            Edit(array.start, array.end, b"[%s]" % b",".join([*before.items, *added])),
            Edit(thread.start, thread.end, self._CREATE),
        ]
        return Expanded(apply_edits(data, edits), previous, b'{"messages":[%s]}' % b",".join(added))

    def list_items(self, own: bytes) -> list[bytes]:
        """Without the cache marks of their blocks. A mark is set for the request that brings it, and a
        request may hold only a few.
        """
        fields = split_fields(own, "messages")
        return [_without_marks(own[place.start : place.end]) for place in fields.items]


_MARK: Final = "cache_control"
# Where blocks stand inside of messages and blocks; the SDKs look for marks in the same places.
_PLACES_OF_BLOCKS: Final = ("content", "source", "tool", "definition", "tool_references")


def _without_marks(raw: bytes) -> bytes:
    """A message without `cache_control` in it. The same bytes if it has none, or cannot be read."""
    try:
        return _drop_marks(raw)
    except (*JSON_ERRORS, BeyondBounds):
        return raw


def _drop_marks(raw: bytes) -> bytes:
    if b'"cache_control"' not in raw:
        return raw
    if raw.startswith(b"["):
        return b"[%s]" % b",".join(_drop_marks(bytes(item)) for item in _decode_list(mend_surrogates(raw)))
    if not raw.startswith(b"{"):
        return raw
    fields = parse_raw_fields(raw)
    fields.pop(_MARK, None)
    for key in fields.keys() & set(_PLACES_OF_BLOCKS):
        fields[key] = Raw(_drop_marks(bytes(fields[key])))
    return msgspec.json.encode(fields)


THREADS: Final = _Threads()
