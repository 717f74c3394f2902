"""Anthropic Messages: the contents of a message's `tool_result` blocks, apart from the rest of it.

What tools of the server gave (`web_search_tool_result` and the like) belongs to the model's reply: no client
clears it, and it stays where it is.
"""

from typing import Final

import msgspec

from gateway.wire.body import decode_fields
from gateway.wire.opened import Opened

_NOTHING: Final = msgspec.Raw(b"null")


def open_results(raw: bytes) -> Opened:
    """Of a slice that was read before. Raises MsgspecError, UnicodeDecodeError, RecursionError."""
    message = decode_fields(raw)
    content = message.get("content", _NOTHING)
    if not bytes(content).startswith(b"["):
        return Opened(raw, ())
    blocks = msgspec.json.decode(content, type=list[dict[str, msgspec.Raw]])
    results = [block for block in blocks if msgspec.json.decode(block.get("type", _NOTHING)) == "tool_result"]
    contents = [msgspec.json.decode(result.pop("content", _NOTHING)) for result in results]
    message["content"] = msgspec.Raw(msgspec.json.encode(blocks))
    return Opened(msgspec.json.encode(message), tuple(contents))
