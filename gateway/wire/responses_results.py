"""Responses: the output of an item that answers a call, apart from the rest of it.

Only outputs that are texts: pictures of a screen and what tools of the server gave stay where they are.
"""

from typing import Final

import msgspec

from gateway.wire.body import decode_fields
from gateway.wire.opened import Opened

_KINDS: Final = frozenset(
    {
        *("function_call_output", "custom_tool_call_output", "local_shell_call_output"),
        *("shell_call_output", "apply_patch_call_output"),
    }
)
_NOTHING: Final = msgspec.Raw(b"null")


def open_results(raw: bytes) -> Opened:
    """Of a slice that was read before. Raises MsgspecError, UnicodeDecodeError, RecursionError."""
    item = decode_fields(raw)
    kind = msgspec.json.decode(item.get("type", _NOTHING))
    if not isinstance(kind, str) or kind not in _KINDS:
        return Opened(raw, ())
    output = msgspec.json.decode(item.get("output", _NOTHING))
    item["output"] = msgspec.Raw(b'""')
    return Opened(msgspec.json.encode(item), (output,))
