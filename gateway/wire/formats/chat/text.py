"""Chat Completions: the texts of a message, for counting and for the summariser.

Knows where words are; leaves ids, flags and the bytes of media out.
"""

import msgspec

from gateway.core.history.transcript import TranscriptEntry
from gateway.core.sizing.attachments import Attachment
from gateway.wire.attachments import weigh_parts
from gateway.wire.body import decode_fields, decode_message
from gateway.wire.canonical import flatten_content
from gateway.wire.wire_format import SplitResults

# Sent back with a message and counted upstream, but not part of what it says.
_HIDDEN_KEYS = ("reasoning_content", "refusal")
# Part types of chat and of what proxies let through. Whatever else there is counts by its words.
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
    """The texts of a slice that has been read before."""
    message = decode_message(raw)
    texts, media = flatten_content(message.get("content"))
    hidden = [message[key] for key in _HIDDEN_KEYS if isinstance(message.get(key), str)]
    media_tokens, words = weigh_parts(media, _ATTACHMENTS)
    return TranscriptEntry(
        role=str(message["role"]),
        text="\n".join(texts),
        calls=tuple(_iter_calls(message)),
        media=len(media),
        hidden="\n".join([*hidden, *words]),
        is_result=message["role"] in ("tool", "function"),
        media_tokens=media_tokens,
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


# JOINED: Chat Completions: the content of a tool message, apart from the rest of it.


def split_results(raw: bytes) -> SplitResults:
    """Of a slice that was read before. Raises MsgspecError, UnicodeDecodeError, RecursionError."""
    message = decode_fields(raw)
    content = msgspec.json.decode(message["content"]) if "content" in message else None
    message["content"] = msgspec.Raw(b'""')
    return SplitResults(msgspec.json.encode(message), (content,))
