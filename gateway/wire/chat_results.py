"""Chat Completions: the content of a tool message, apart from the rest of it."""

import msgspec

from gateway.wire.opened import Opened
from gateway.wire.surrogates import mend_surrogates


def open_results(raw: bytes) -> Opened:
    """Of a slice that was read before. Raises MsgspecError, UnicodeDecodeError, RecursionError."""
    message = msgspec.json.decode(mend_surrogates(raw), type=dict[str, msgspec.Raw])
    content = msgspec.json.decode(message["content"]) if "content" in message else None
    message["content"] = msgspec.Raw(b'""')
    return Opened(msgspec.json.encode(message), (content,))
