"""Chat Completions: the texts of a message, for counting and for summaries.

Leaves out ids, flags and the bytes of attachments.
"""

import msgspec

from gateway.core.history.transcript import TranscriptEntry
from gateway.core.sizing.attachments import Attachment
from gateway.wire.attachments import measure_parts
from gateway.wire.body import parse_raw_fields, parse_value
from gateway.wire.canonical import flatten_content
from gateway.wire.wire_format import SplitResults

# Sent back with a message and counted upstream, but not part of the text.
_HIDDEN_KEYS = ("reasoning_content", "refusal")
# Part types of this API, and of others that proxies pass on. All other parts count by their words.
_ATTACHMENTS: dict[str, Attachment] = {
    "image_url": "image",
    "image": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "file": "file",
    "input_file": "file",
    "document": "file",
    "video_url": "file",
    "input_video": "file",
    "video": "file",
}


def parse_entry(raw: bytes) -> TranscriptEntry:
    """The texts of a slice that `parse_message` has accepted."""
    message = parse_value(raw)
    texts, media = flatten_content(message.get("content"))
    hidden = [message[key] for key in _HIDDEN_KEYS if isinstance(message.get(key), str)]
    media_tokens, words = measure_parts(media, _ATTACHMENTS)
    return TranscriptEntry(
        role=str(message["role"]),
        text="\n".join(texts),
        calls=tuple(_list_calls(message)),
        media=len(media),
        hidden="\n".join([*hidden, *words]),
        is_result=message["role"] in ("tool", "function"),
        media_tokens=media_tokens,
    )


def _list_calls(message: dict[str, object]) -> list[tuple[str, str]]:
    calls = message.get("tool_calls")
    found = [_find_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        found.append((str(legacy.get("name") or ""), str(legacy.get("arguments") or "")))
    return found


def _find_call(call: dict[str, object]) -> tuple[str, str]:
    kind = call.get("type")
    detail = call.get(kind if isinstance(kind, str) else "function")
    if not isinstance(detail, dict):
        return "", ""
    return str(detail.get("name") or ""), str(detail.get("arguments") or detail.get("input") or "")


def split_results(raw: bytes) -> SplitResults:
    """The content of a tool message, apart from the rest.

    Raises MsgspecError, UnicodeDecodeError or RecursionError.
    """
    message = parse_raw_fields(raw)
    content = msgspec.json.decode(message["content"]) if "content" in message else None
    message["content"] = msgspec.Raw(b'""')
    return SplitResults(msgspec.json.encode(message), (content,))
