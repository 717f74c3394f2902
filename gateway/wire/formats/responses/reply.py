"""Responses: what one JSON object of an answer says."""

from gateway.wire.formats.responses.items import read_kind
from gateway.wire.wire_format import JsonObject, ReplyPart

_NOTHING = ReplyPart("", False, False)


def find_reply_part(document: JsonObject) -> ReplyPart:
    """A delta; a text, an item or a response that is whole; a whole body."""
    match document:
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return ReplyPart(text, False, False)
        case {"type": "response.output_text.done", "text": str(text)}:
            return ReplyPart(text, True, False)
        case {"type": "response.output_item.added" | "response.output_item.done", "item": dict(item)}:
            return _read_items([item])
        case {"response": {"output": list(items)}} | {"object": "response", "output": list(items)}:
            return _read_items(items)
    return _NOTHING


def _read_items(items: list[object]) -> ReplyPart:
    """The texts of the messages; anything that is called by whatever name is a call."""
    read = [item for item in items if isinstance(item, dict)]
    texts = [text for item in read if read_kind(item) == "message" for text in _list_texts(item)]
    return ReplyPart("".join(texts), True, any(read_kind(item).endswith("_call") for item in read))


def _list_texts(item: JsonObject) -> list[str]:
    content = item.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if part.get("type") == "output_text"]
    return [text for text in texts if isinstance(text, str)]
