"""Anthropic Messages: what one JSON object of a response adds to the reply. Thinking is not text."""

from gateway.wire.wire_format import JsonObject, ReplyPart


def find_reply_part(document: JsonObject) -> ReplyPart:
    """Reads a piece of a block, the start of a block, or the whole message."""
    match document:
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
            return ReplyPart(text)
        case {"type": "content_block_start", "content_block": dict(block)}:
            return ReplyPart(_text_of(block), has_tool_calls=_is_call(block))
        case {"type": "message", "content": list(content)}:
            blocks = [block for block in content if isinstance(block, dict)]
            text = "".join(map(_text_of, blocks))
            return ReplyPart(text, is_whole=True, has_tool_calls=any(map(_is_call, blocks)))
    return ReplyPart()


def _text_of(block: JsonObject) -> str:
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else ""


def _is_call(block: JsonObject) -> bool:
    """Of the client's tools, or of those that the provider runs."""
    kind = block.get("type")
    return isinstance(kind, str) and kind.endswith("tool_use")
