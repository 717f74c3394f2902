"""Responses: items of our own making, a summary and a shortened one."""

from typing import Any, Final

import msgspec

from gateway.core.history.pivot import Mark, Pivot, list_turns
from gateway.core.history.transcript import cut_middle
from gateway.wire.body import decode_fields
from gateway.wire.responses_items import decode_items, read_answered, read_kind

_PART_TYPES: Final = {"user": "input_text", "assistant": "output_text"}
# A screenshot can only give way to a screenshot: 32 grey pixels square.
BLANK_PICTURE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAFklEQVR42mNoIAAYRhWMKhhVMFIVAABC"
    "AAAfN5c2AAAAAABJRU5ErkJggg=="
)


def render_summary(pivot: Pivot, next_role: str) -> bytes:
    """The items that stand for everything the pivot covers, as JSON separated by commas.

    Without ids: they are valid whether upstream stores responses or not.
    """
    items = [
        {"type": "message", "role": role, "content": [{"type": _PART_TYPES[role], "text": text}]}
        for role, text in list_turns(pivot, next_role)
    ]
    return b",".join(map(msgspec.json.encode, items))


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """An item with its text cleared or cut. The container stays what it was: string, list of parts, shell
    output or screenshot.

    Attachments go when the text is cleared. Every other field is kept; nothing to shorten, no byte changes.
    """
    items = decode_items(raw)
    item = items[0]
    key = "content" if read_kind(item) == "message" else "output"
    if len(items) > 1 or item.get("role") == "assistant":
        return raw
    if raw.startswith(b'"'):
        text = _shorten(item["content"], mark, placeholder)
        return msgspec.json.encode(text) if text != item["content"] else raw
    shortened = _shorten(item.get(key), mark, placeholder)
    if item.get("tools") and read_answered(item) is not None and mark.keep_chars is None:
        # What a search for tools has found can be found again; there is no place for words.
        key, shortened = "tools", []
    if shortened == item.get(key):
        return raw
    fields = decode_fields(raw)
    fields[key] = msgspec.Raw(msgspec.json.encode(shortened))
    return msgspec.json.encode(fields)


def _shorten(content: object, mark: Mark, placeholder: str) -> object:
    if isinstance(content, str):
        return placeholder if mark.keep_chars is None else cut_middle(content, mark.keep_chars)
    if isinstance(content, list):
        return (
            _clear_list(content, placeholder)
            if mark.keep_chars is None
            else _cut_list(content, mark.keep_chars)
        )
    if isinstance(content, dict) and content.get("type") == "computer_screenshot" and mark.keep_chars is None:
        return {"type": "computer_screenshot", "image_url": BLANK_PICTURE}
    return content


def _clear_list(parts: list[Any], placeholder: str) -> list[object]:
    """One part that says so; of a shell one for each command."""
    if all(isinstance(part, dict) and "stdout" in part for part in parts):
        return [{**part, "stdout": placeholder, "stderr": ""} for part in parts]
    return [{"type": "input_text", "text": placeholder}]


def _cut_list(parts: list[Any], keep_chars: int) -> list[object]:
    return [_cut_part(part, keep_chars) for part in parts]


def _cut_part(part: object, keep_chars: int) -> object:
    if not isinstance(part, dict):
        return part
    texts = {key: part[key] for key in ("text", "stdout", "stderr") if isinstance(part.get(key), str)}
    return {**part, **{key: cut_middle(text, keep_chars) for key, text in texts.items()}}
