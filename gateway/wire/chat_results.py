"""Chat Completions: the content of a tool message, apart from the rest of it."""

import msgspec

from gateway.wire.body import decode_fields
from gateway.wire.opened import Opened


def open_results(raw: bytes) -> Opened:
    """Of a slice that was read before. Raises MsgspecError, UnicodeDecodeError, RecursionError."""
    message = decode_fields(raw)
    content = msgspec.json.decode(message["content"]) if "content" in message else None
    message["content"] = msgspec.Raw(b'""')
    return Opened(msgspec.json.encode(message), (content,))
