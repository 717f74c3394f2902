"""Chat Completions: the texts of a message, for counting and for the summariser.

Knows where words are; leaves ids, flags and the bytes of media out.
"""

from collections.abc import Iterator

from gateway.core.attachment import ATTACHMENT_TOKENS, Attachment
from gateway.core.transcript import Spoken
from gateway.wire.body import decode_message
from gateway.wire.canonical import flatten_content

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
# No word is that long: bytes in base64.
_BLOB_CHARACTERS = 1_024


def read_spoken(raw: bytes) -> Spoken:
    """The texts of a slice that has been read before."""
    message = decode_message(raw)
    texts, media = flatten_content(message.get("content"))
    hidden = [message[key] for key in _HIDDEN_KEYS if isinstance(message.get(key), str)]
    media_tokens = 0
    for part in media:
        kind = _read_attachment(part)
        if kind is None:
            hidden.extend(_iter_words(part))
        else:
            media_tokens += ATTACHMENT_TOKENS[kind]
    return Spoken(
        role=str(message["role"]),
        text="\n".join(texts),
        calls=tuple(_iter_calls(message)),
        media=len(media),
        hidden="\n".join(hidden),
        is_result=message["role"] in ("tool", "function"),
        media_tokens=media_tokens,
    )


def _read_attachment(part: dict[str, object]) -> Attachment | None:
    kind = part.get("type")
    return _ATTACHMENTS.get(kind) if isinstance(kind, str) else None


def _iter_words(value: object) -> Iterator[str]:
    """The strings of a part that no format names, without those that are bytes in base64."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if not _is_blob(value):
                yield value
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))


def _is_blob(text: str) -> bool:
    if text.startswith("data:"):
        return True
    start = text[:_BLOB_CHARACTERS]
    return len(start) == _BLOB_CHARACTERS and start.isascii() and not any(map(str.isspace, start))


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
