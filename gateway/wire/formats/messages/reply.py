"""Anthropic Messages: what one JSON object of an answer says. Thinking is not text."""

from gateway.wire.wire_format import JsonObject, ReplyPart

_NOTHING = ReplyPart("", is_whole=False, has_tool_calls=False)


def find_reply_part(document: JsonObject) -> ReplyPart:
    """A piece of a block, a block that begins, or the whole message."""
    match document:
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
            return ReplyPart(text, is_whole=False, has_tool_calls=False)
        case {"type": "content_block_start", "content_block": dict(block)}:
            return ReplyPart(_read_text(block), is_whole=False, has_tool_calls=_is_call(block))
        case {"type": "message", "content": list(content)}:
            blocks = [block for block in content if isinstance(block, dict)]
            text = "".join(map(_read_text, blocks))
            return ReplyPart(text, is_whole=True, has_tool_calls=any(map(_is_call, blocks)))
    return _NOTHING


def _read_text(block: JsonObject) -> str:
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else ""


def _is_call(block: JsonObject) -> bool:
    return block.get("type") == "tool_use"
