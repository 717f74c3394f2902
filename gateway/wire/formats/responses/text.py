"""Responses: the texts of a message, for counting and for summaries.

Leaves out ids, flags and the bytes of attachments.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.core.history.transcript import TranscriptEntry
from gateway.core.sizing.attachments import ATTACHMENT_TOKENS, Attachment
from gateway.wire.attachments import iter_words, measure_parts
from gateway.wire.body import parse_raw_fields
from gateway.wire.canonical import Content, canonical_json, flatten_content
from gateway.wire.formats.responses.items import Item, find_answered, kind_of, parse_items
from gateway.wire.wire_format import SplitResults

_ATTACHMENTS: Final[dict[str, Attachment]] = {
    "input_image": "image",
    "computer_screenshot": "image",
    "input_audio": "audio",
    "input_file": "file",
    "input_video": "file",
}
# Fields of a call, of any kind, that are not its arguments.
_FRAME_KEYS: Final = frozenset(
    {"type", "id", "call_id", "status", "name", "result", "output", "content", "created_by", "role", "phase"}
)
# Encrypted reasoning is base64: three bytes in four characters, four or five bytes for a token.
_OPAQUE_CHARACTERS_PER_TOKEN: Final = 6
_OUTPUT_KINDS: Final = frozenset(
    {
        *("function_call_output", "custom_tool_call_output", "local_shell_call_output"),
        *("shell_call_output", "apply_patch_call_output"),
    }
)
_NULL: Final = msgspec.Raw(b"null")


def parse_entry(raw: bytes) -> TranscriptEntry:
    """The texts of a slice that `parse_message` has accepted."""
    *reasoning, item = parse_items(raw)
    if kind_of(item) == "reasoning":
        reasoning.append(item)
    texts, media = _find_content(item)
    hidden = [word for thought in reasoning for word in _list_reasoning(thought)]
    media_tokens, words = measure_parts(media, _ATTACHMENTS)
    media_tokens += sum(map(_count_opaque, reasoning))
    if isinstance(item.get("result"), str):
        media_tokens += ATTACHMENT_TOKENS["image"]
    is_result = find_answered(item) is not None
    role = item.get("role")
    return TranscriptEntry(
        role=role if isinstance(role, str) else "tool" if is_result else "assistant",
        text="\n".join(texts),
        calls=_list_calls(item),
        media=len(media) + isinstance(item.get("result"), str),
        hidden="\n".join([*hidden, *words]),
        is_result=is_result,
        media_tokens=media_tokens,
        is_error=is_result and item.get("status") == "failed",
    )


def _find_content(item: Item) -> Content:
    """Texts and other parts of a message, or of an output."""
    if kind_of(item) == "reasoning":
        return Content([], [])
    content = flatten_content(item.get("content"))
    output = flatten_content(item.get("output"))
    words = [word for part in output.others if _is_of_shell(part) for word in iter_words(part)]
    others = [part for part in output.others if not _is_of_shell(part)]
    return Content([*content.texts, *output.texts, *words], [*content.others, *others])


def _is_of_shell(part: Mapping[str, object]) -> bool:
    return "stdout" in part or "stderr" in part


def _list_reasoning(thought: Item) -> list[str]:
    return [word for key in ("summary", "content") for word in _list_texts(thought.get(key))]


def _list_texts(parts: object) -> list[str]:
    found = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [text for text in found if isinstance(text, str)]


def _count_opaque(thought: Item) -> int:
    encrypted = thought.get("encrypted_content")
    return len(encrypted) // _OPAQUE_CHARACTERS_PER_TOKEN if isinstance(encrypted, str) else 0


def _list_calls(item: Item) -> tuple[tuple[str, str], ...]:
    """Includes calls that the upstream answers itself."""
    kind = kind_of(item)
    if not (kind.endswith("_call") or kind.startswith("mcp_approval_request")):
        return ()
    name = item.get("name")
    given = item.get("arguments", item.get("input"))
    if not isinstance(given, str):
        rest = {key: value for key, value in item.items() if key not in _FRAME_KEYS}
        given = canonical_json(rest).decode("utf-8", "replace")
    return ((name if isinstance(name, str) else kind.removesuffix("_call"), given),)


def split_results(raw: bytes) -> SplitResults:
    """The output of an item that answers a call, apart from the rest.

    Raises MsgspecError, UnicodeDecodeError or RecursionError.
    """
    item = parse_raw_fields(raw)
    kind = msgspec.json.decode(item.get("type", _NULL))
    if not isinstance(kind, str) or kind not in _OUTPUT_KINDS:
        return SplitResults(raw, ())
    output = msgspec.json.decode(item.get("output", _NULL))
    item["output"] = msgspec.Raw(b'""')
    return SplitResults(msgspec.json.encode(item), (output,))
