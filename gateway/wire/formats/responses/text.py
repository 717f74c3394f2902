"""Responses: the texts of a message, for counting and for the summariser.

Knows where words are; leaves ids, flags and the bytes of media out.
"""

from typing import Final

import msgspec

from gateway.core.history.transcript import TranscriptEntry
from gateway.core.sizing.attachments import ATTACHMENT_TOKENS, Attachment
from gateway.wire.attachments import iter_words, weigh_parts
from gateway.wire.body import decode_fields
from gateway.wire.canonical import canonical_json, flatten_content
from gateway.wire.formats.responses.items import Item, decode_items, read_answered, read_kind
from gateway.wire.wire_format import SplitResults

_ATTACHMENTS: Final[dict[str, Attachment]] = {
    "input_image": "image",
    "computer_screenshot": "image",
    "input_audio": "audio",
    "input_file": "file",
    "input_video": "file",
}
# What a call of whatever kind holds besides the words of the call.
_FRAME_KEYS: Final = frozenset(
    {"type", "id", "call_id", "status", "name", "result", "output", "content", "created_by", "role", "phase"}
)
# Thoughts come back encrypted, as base64: three bytes in four characters, four or five bytes to a token.
_SECRET_CHARACTERS_PER_TOKEN: Final = 6


def parse_entry(raw: bytes) -> TranscriptEntry:
    """The texts of a slice that has been read before."""
    *thoughts, item = decode_items(raw)
    if read_kind(item) == "reasoning":
        thoughts.append(item)
    texts, media = _read_said(item)
    hidden = [word for thought in thoughts for word in _list_thoughts(thought)]
    media_tokens, words = weigh_parts(media, _ATTACHMENTS)
    media_tokens += sum(map(_count_secret, thoughts))
    if isinstance(item.get("result"), str):
        media_tokens += ATTACHMENT_TOKENS["image"]
    is_result = read_answered(item) is not None
    role = item.get("role")
    return TranscriptEntry(
        role=role if isinstance(role, str) else "tool" if is_result else "assistant",
        text="\n".join(texts),
        calls=_read_calls(item),
        media=len(media) + isinstance(item.get("result"), str),
        hidden="\n".join([*hidden, *words]),
        is_result=is_result,
        media_tokens=media_tokens,
    )


def _read_said(item: Item) -> tuple[list[str], list[dict[str, object]]]:
    """Texts and other parts of a message, or of an output."""
    if read_kind(item) == "reasoning":
        return [], []
    texts, media = flatten_content(item.get("content"))
    output = flatten_content(item.get("output"))
    shell = [part for part in output[1] if "stdout" in part or "stderr" in part]
    texts = [*texts, *output[0], *(word for part in shell for word in iter_words(part))]
    return texts, [*media, *(part for part in output[1] if part not in shell)]


def _list_thoughts(thought: Item) -> list[str]:
    return [word for key in ("summary", "content") for word in _list_texts(thought.get(key))]


def _list_texts(parts: object) -> list[str]:
    found = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [text for text in found if isinstance(text, str)]


def _count_secret(thought: Item) -> int:
    secret = thought.get("encrypted_content")
    return len(secret) // _SECRET_CHARACTERS_PER_TOKEN if isinstance(secret, str) else 0


def _read_calls(item: Item) -> tuple[tuple[str, str], ...]:
    """Also of calls that upstream answers itself."""
    kind = read_kind(item)
    if not (kind.endswith("_call") or kind.startswith("mcp_approval_request")):
        return ()
    name = item.get("name")
    given = item.get("arguments", item.get("input"))
    if not isinstance(given, str):
        rest = {key: value for key, value in item.items() if key not in _FRAME_KEYS}
        given = canonical_json(rest).decode("utf-8", "replace")
    return ((name if isinstance(name, str) else kind.removesuffix("_call"), given),)


# JOINED: Responses: the output of an item that answers a call, apart from the rest of it.

_KINDS: Final = frozenset(
    {
        *("function_call_output", "custom_tool_call_output", "local_shell_call_output"),
        *("shell_call_output", "apply_patch_call_output"),
    }
)
_NOTHING: Final = msgspec.Raw(b"null")


def split_results(raw: bytes) -> SplitResults:
    """Of a slice that was read before. Raises MsgspecError, UnicodeDecodeError, RecursionError."""
    item = decode_fields(raw)
    kind = msgspec.json.decode(item.get("type", _NOTHING))
    if not isinstance(kind, str) or kind not in _KINDS:
        return SplitResults(raw, ())
    output = msgspec.json.decode(item.get("output", _NOTHING))
    item["output"] = msgspec.Raw(b'""')
    return SplitResults(msgspec.json.encode(item), (output,))
