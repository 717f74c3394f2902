"""Messages: puts a response together as the message that stands for it in a later request.

From a stream block by block, exactly as the official SDKs do, and from a whole body at once. A response that
cannot be put together for certain is none.
"""

from typing import Final

import msgspec

from gateway.wire.body import parse_raw_fields
from gateway.wire.edits import join_halves
from gateway.wire.references import StoredResponse
from gateway.wire.sse import SseEvent

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
    """Is fed the events of one response."""

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
