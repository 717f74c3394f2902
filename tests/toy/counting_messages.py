"""Tokens of a Messages request. The same content costs as much as in chat; cache marks are free."""

from collections.abc import Mapping

from tests.toy.counting import (
    MESSAGE_TOKENS,
    PRIMING_TOKENS,
    TokenCounter,
    count_call,
    count_content,
    render_compact,
)
from tests.toy.validity_messages import read_blocks


def count_prompt(counter: TokenCounter, request: Mapping[str, object]) -> int:
    """Exactly the sum of its parts: system, tools, messages."""
    system = read_blocks(request.get("system"))
    leading = counter.scale(MESSAGE_TOKENS + count_content(list(system))) if system else 0
    messages = request.get("messages")
    known = [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    said = sum(count_message(counter, message) for message in known)
    tools = without_marks(request.get("tools"))
    return leading + said + counter.tools(tools) + counter.scale(PRIMING_TOKENS)


def count_message(counter: TokenCounter, message: Mapping[str, object]) -> int:
    """Each result has the overhead of a message; a message that holds results only has none of its own."""
    blocks = read_blocks(message.get("content"))
    is_framed = any(block.get("type") != "tool_result" for block in blocks)
    return counter.scale(sum(map(_count_block, blocks)) + (MESSAGE_TOKENS if is_framed else 0))


def _count_block(block: Mapping[str, object]) -> float:
    match block:
        case {"type": "tool_use", "name": str(name), "input": arguments}:
            return count_call(name, render_compact(arguments))
        case {"type": "tool_result"}:
            return MESSAGE_TOKENS + count_content(block.get("content"))
        case {"type": "thinking", "thinking": str(text)}:
            return count_content(text)
        case _:
            return count_content([without_marks(block)])


def without_marks(value: object) -> object:
    """The value without `cache_control`, which is not part of the prompt."""
    if isinstance(value, list):
        return [without_marks(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {key: part for key, part in value.items() if key != "cache_control"}
    return kept | {"content": without_marks(kept["content"])} if "content" in kept else kept
