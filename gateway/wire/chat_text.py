"""Chat Completions: the texts of a message, for counting and for the summariser.

Knows where words are; leaves ids, flags and media out.
"""

import msgspec

from gateway.core.transcript import Spoken
from gateway.wire.canonical import flatten_content

# Sent back with a message and counted upstream, but not part of what it says.
_HIDDEN_KEYS = ("reasoning_content", "refusal")


def read_spoken(raw: bytes) -> Spoken:
    """The texts of a slice that has been read before."""
    message = msgspec.json.decode(raw)
    texts, media = flatten_content(message.get("content"))
    hidden = [message[key] for key in _HIDDEN_KEYS if isinstance(message.get(key), str)]
    return Spoken(
        role=str(message["role"]),
        text="\n".join(texts),
        calls=tuple(_iter_calls(message)),
        media=len(media),
        hidden="\n".join(hidden),
        is_result=message["role"] in ("tool", "function"),
    )


def _iter_calls(message: dict[str, object]) -> list[tuple[str, str]]:
    calls = message.get("tool_calls")
    found = [_read_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        found.append((str(legacy.get("name") or ""), str(legacy.get("arguments") or "")))
    return found


def _read_call(call: dict[str, object]) -> tuple[str, str]:
    kind = call.get("type")
    detail = call.get(kind if isinstance(kind, str) else "function")
    if not isinstance(detail, dict):
        return "", ""
    return str(detail.get("name") or ""), str(detail.get("arguments") or detail.get("input") or "")
