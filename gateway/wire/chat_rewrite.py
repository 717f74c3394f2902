"""Chat Completions: messages of our own making, a summary and a shortened one."""

import msgspec

from gateway.core.history.pivot import Mark, Pivot, list_turns
from gateway.core.history.transcript import cut_middle
from gateway.wire.body import decode_fields


def render_summary(pivot: Pivot, next_role: str) -> bytes:
    """The messages that stand for everything the pivot covers, as JSON separated by commas."""
    messages = [{"role": role, "content": text} for role, text in list_turns(pivot, next_role)]
    return b",".join(map(msgspec.json.encode, messages))


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """A message with its text cleared or cut. The container stays what it was: string or list of parts.

    Attachments go when the text is cleared. Every other field is kept; nothing to shorten, no byte changes.
    """
    message = decode_fields(raw)
    content = msgspec.json.decode(message["content"]) if "content" in message else None
    shortened = _shorten_content(content, mark, placeholder)
    if shortened == content:
        return raw
    message["content"] = msgspec.Raw(msgspec.json.encode(shortened))
    return msgspec.json.encode(message)


def _shorten_content(content: object, mark: Mark, placeholder: str) -> object:
    if mark.keep_chars is None:
        return [{"type": "text", "text": placeholder}] if isinstance(content, list) else placeholder
    if isinstance(content, str):
        return cut_middle(content, mark.keep_chars)
    if not isinstance(content, list):
        return content
    return [_shorten_part(part, mark.keep_chars) for part in content]


def _shorten_part(part: object, keep_chars: int) -> object:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": cut_middle(part["text"], keep_chars)}
    return part
