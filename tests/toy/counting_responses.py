"""Tokens of a Responses request. The same content costs as much as in chat."""

from collections.abc import Mapping

from tests.toy.counting import (
    MESSAGE_TOKENS,
    PRIMING_TOKENS,
    TokenCounter,
    count_call,
    count_content,
    count_text,
    render_compact,
)
from tests.toy.memory import read_items
from tests.toy.seal import unseal


def count_prompt(counter: TokenCounter, request: Mapping[str, object]) -> int:
    """Exactly the sum of its parts: instructions, items, tools."""
    instructions = request.get("instructions")
    system = counter.scale(MESSAGE_TOKENS + count_content(instructions)) if instructions else 0
    known = [item for item in read_items(request) if isinstance(item, dict)]
    items = sum(counter.scale(_count_item(item)) for item in known)
    return system + items + counter.tools(request.get("tools")) + counter.scale(PRIMING_TOKENS)


def _count_item(item: Mapping[str, object]) -> float:
    match item:
        case {"type": "function_call", "name": str(name), "arguments": str(arguments)}:
            return MESSAGE_TOKENS + count_call(name, arguments)
        case {"type": "custom_tool_call", "name": str(name), "input": str(text)}:
            return MESSAGE_TOKENS + count_call(name, text)
        case {"output": output}:
            return MESSAGE_TOKENS + count_content(output)
        case {"type": "reasoning"}:
            return _count_reasoning(item)
        case {"content": content}:
            return MESSAGE_TOKENS + count_content(content)
        case _:
            return count_text(render_compact(item))


def _count_reasoning(item: Mapping[str, object]) -> float:
    """The decrypted reasoning; the public summary if the request has no encrypted content."""
    secret = item.get("encrypted_content")
    sealed = unseal(secret) if isinstance(secret, str) else None
    return count_text(sealed.text) if sealed is not None else count_content(item.get("summary"))
