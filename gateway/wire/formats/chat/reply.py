"""Chat Completions: what one JSON object of a response adds to the reply. Reasoning is not text."""

from collections.abc import Iterator
from typing import Final

from gateway.wire.response.facts import choices_of
from gateway.wire.wire_format import JsonObject, ReplyPart

_TEXT_PARTS: Final = (None, "text", "output_text")


def find_reply_part(document: JsonObject) -> ReplyPart:
    """The text of the first choice, and whether any choice has tool calls."""
    texts: list[str] = []
    is_whole = has_tool_calls = False
    for choice in choices_of(document):
        delta, message = choice.get("delta"), choice.get("message")
        has_tool_calls = has_tool_calls or _has_tool_calls(delta) or _has_tool_calls(message)
        if choice.get("index", 0) != 0:
            continue
        if isinstance(delta, dict):
            texts.extend(_iter_texts(delta.get("content")))
        elif isinstance(message, dict):
            is_whole = True
            texts.extend(_iter_texts(message.get("content")))
    return ReplyPart("".join(texts), is_whole, has_tool_calls)


def _iter_texts(content: object) -> Iterator[str]:
    """The texts of a string or of a list of parts."""
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            yield part["text"]


def _has_tool_calls(message: object) -> bool:
    return isinstance(message, dict) and bool(message.get("tool_calls") or message.get("function_call"))
