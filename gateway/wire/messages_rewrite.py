"""Anthropic Messages: messages of our own making, a summary and a shortened one."""

from typing import Final

import msgspec

from gateway.core.history.pivot import Mark, Pivot, list_turns
from gateway.core.history.transcript import cut_middle
from gateway.wire.body import decode_fields

# "text content blocks must be non-empty", and must say something.
_NOTHING: Final = "(nothing)"

Fields = dict[str, msgspec.Raw]


def render_summary(pivot: Pivot, next_role: str) -> bytes:
    """The messages that stand for everything the pivot covers, as JSON separated by commas.

    "final assistant content cannot end with trailing whitespace": nor does any other here.
    """
    messages = [
        {"role": role, "content": text.rstrip() or _NOTHING} for role, text in list_turns(pivot, next_role)
    ]
    return b",".join(map(msgspec.json.encode, messages))


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """A message with its tool results cleared or cut, each in the container it came in; one without results
    with its own texts cut.

    Attachments go when a result is cleared. What else a message with results says is kept, like every other
    field; nothing to shorten, no byte changes.
    """
    message = decode_fields(raw)
    content = message.get("content", msgspec.Raw(b"null"))
    shortened = _shorten_message(content, mark, placeholder)
    if shortened is content:
        return raw
    return msgspec.json.encode(message | {"content": shortened})


def _shorten_message(content: msgspec.Raw, mark: Mark, placeholder: str) -> msgspec.Raw:
    """The very object where nothing changes."""
    blocks = _read_blocks(content)
    if not any(map(_is_result, blocks)):
        # A result of a kind that is not known is never cleared: its call would be left without one.
        return content if mark.keep_chars is None else _shorten_content(content, mark, placeholder)
    shortened = [
        _shorten_result(block, mark, placeholder) if _is_result(block) else block for block in blocks
    ]
    if all(new is old for new, old in zip(shortened, blocks, strict=True)):
        return content
    return msgspec.Raw(msgspec.json.encode(shortened))


def _read_blocks(content: msgspec.Raw) -> list[Fields]:
    """None of a string, and of a list that holds anything but objects."""
    try:
        return msgspec.json.decode(content, type=list[Fields])
    except msgspec.ValidationError:
        return []


def _is_result(block: Fields) -> bool:
    return "type" in block and bytes(block["type"]) == b'"tool_result"'


def _shorten_result(block: Fields, mark: Mark, placeholder: str) -> Fields:
    content = block.get("content")
    if content is None:
        return block
    shortened = _shorten_content(content, mark, placeholder)
    return block if shortened is content else block | {"content": shortened}


def _shorten_content(content: msgspec.Raw, mark: Mark, placeholder: str) -> msgspec.Raw:
    old = msgspec.json.decode(content)
    new = _clear(old, placeholder) if mark.keep_chars is None else _cut(old, mark.keep_chars)
    return content if new == old else msgspec.Raw(msgspec.json.encode(new))


def _clear(content: object, placeholder: str) -> object:
    """What says no more than the placeholder stays: nothing is won, and an empty text would be refused."""
    match content:
        case str() if len(content) > len(placeholder):
            return placeholder
        case [{"type": "text", "text": str(text)}] if len(text) <= len(placeholder):
            return content
        case [_, *_]:
            return [{"type": "text", "text": placeholder}] if placeholder.strip() else []
    return content


def _cut(content: object, keep_chars: int) -> object:
    if isinstance(content, str):
        return cut_middle(content, keep_chars)
    if not isinstance(content, list):
        return content
    return [_cut_block(block, keep_chars) for block in content]


def _cut_block(block: object, keep_chars: int) -> object:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return {**block, "text": cut_middle(block["text"], keep_chars)}
    return block
