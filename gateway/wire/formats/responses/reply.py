"""Responses: what one JSON object of a response adds to the reply."""

from gateway.wire.formats.responses.items import kind_of
from gateway.wire.wire_format import JsonObject, ReplyPart


def find_reply_part(document: JsonObject) -> ReplyPart:
    """Reads a delta, a whole text, item or response in an event, or a whole body."""
    match document:
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return ReplyPart(text)
        case {"type": "response.output_text.done", "text": str(text)}:
            return ReplyPart(text, is_whole=True)
        case {"type": "response.output_item.added" | "response.output_item.done", "item": dict(item)}:
            return _join_items([item])
        case {"response": {"output": list(items)}} | {"object": "response", "output": list(items)}:
            return _join_items(items)
    return ReplyPart()


def _join_items(items: list[object]) -> ReplyPart:
    """The texts of the messages. Items of any type that ends in `_call` are tool calls."""
    known = [item for item in items if isinstance(item, dict)]
    texts = [text for item in known if kind_of(item) == "message" for text in _list_texts(item)]
    has_tool_calls = any(kind_of(item).endswith("_call") for item in known)
    return ReplyPart("".join(texts), is_whole=True, has_tool_calls=has_tool_calls)


def _list_texts(item: JsonObject) -> list[str]:
    content = item.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if part.get("type") == "output_text"]
    return [text for text in texts if isinstance(text, str)]
