"""What OpenAI refuses in a chat request, apart from its length; on request also what strict templates
refuse.

Pure functions: a request in, the text of the refusal or None out. Unknown fields are allowed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Message = Mapping[str, object]
_LEADING = ("system", "developer")
_ROLES = (*_LEADING, "user", "assistant", "tool", "function")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Differences between upstreams. The defaults are the strictest that well-behaved agents meet."""

    later_system: bool = False  # a system message after the leading block is allowed
    prefill: bool = False  # the last message may be the assistant's
    # As Mistral's template: no user after user or tool, no assistant after assistant.
    alternating: bool = False
    # In Responses, items of an unknown type are allowed.
    unknown_items: bool = False
    # Encrypted reasoning and signatures may be another provider's.
    foreign_secrets: bool = False


STRICT = Rules()


def find_violation(request: object, rules: Rules = STRICT) -> str | None:
    """The first reason to refuse: envelope, then each message, then order, then calls and results."""
    if not isinstance(request, dict):
        return "We could not parse the JSON body of your request."
    return next(_violations(request, rules), None)


def _violations(request: Message, rules: Rules) -> Iterator[str]:
    yield from _envelope(request)
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "Invalid 'messages': empty array. Expected an array with minimum length 1."
        return
    for index, message in enumerate(messages):
        yield from _message(f"messages[{index}]", message)
    yield from _order(messages, rules)
    yield from _calls(messages)
    if any(m.get("role") == "tool" for m in messages) and not request.get("tools"):
        yield "Invalid 'messages': 'tool' messages require 'tools' in the request."


def _envelope(request: Message) -> Iterator[str]:
    if not request.get("model") or not isinstance(request["model"], str):
        yield "you must provide a model parameter"
    if "tools" in request and not (isinstance(request["tools"], list) and request["tools"]):
        yield "Invalid 'tools': empty array. Expected an array with minimum length 1."
    if request.get("tool_choice") is not None and not request.get("tools"):
        yield "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
    if request.get("stream_options") is not None and not request.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    yield from _output_limit(request)


def _output_limit(request: Message) -> Iterator[str]:
    named = [name for name in ("max_tokens", "max_completion_tokens") if request.get(name) is not None]
    if len(named) == 2:
        yield "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
    for name in named:
        value = request[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"Invalid '{name}': integer below minimum value. Expected a value >= 1, got {value!r}."


def _message(where: str, message: object) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"Invalid type for '{where}': expected an object."
        return
    role = message.get("role")
    if role not in _ROLES:
        yield f"Invalid value: {role!r}. Supported values are: 'system', 'assistant', 'user' and 'tool'."
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        yield f"Invalid type for '{where}.content': expected one of a string or array of objects."
    if isinstance(content, list) and not all(isinstance(part, dict) and "type" in part for part in content):
        yield f"Invalid value for '{where}.content': every part needs a 'type'."
    yield from _content(where, message)
    yield from _call_shapes(where, message)


def _content(where: str, message: Message) -> Iterator[str]:
    role, content = message.get("role"), message.get("content")
    if role in _LEADING or role == "user":
        if not content:
            yield f"Invalid value for '{where}.content': expected a non-empty string, got {content!r}."
        elif isinstance(content, list) and any(map(_is_empty_text, content)):
            yield f"Invalid value for '{where}.content': text content blocks must be non-empty."
    elif content is None and not (role == "assistant" and message.get("tool_calls")):
        yield f"Invalid value for '{where}.content': expected a string, got null."


def _is_empty_text(part: Message) -> bool:
    return part.get("type") == "text" and not part.get("text")


def _call_shapes(where: str, message: Message) -> Iterator[str]:
    role, calls = message.get("role"), message.get("tool_calls")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield f"Missing required parameter: '{where}.tool_call_id'."
    if calls is None:
        return
    if role != "assistant":
        yield f"Unknown parameter: '{where}.tool_calls'."
    elif not isinstance(calls, list) or not calls:
        yield f"Invalid '{where}.tool_calls': empty array. Expected an array with minimum length 1."
    elif not all(map(_is_call, calls)):
        yield f"Invalid '{where}.tool_calls': every call needs an id, a name and arguments as a string."
    elif len({call["id"] for call in calls}) < len(calls):
        yield f"Invalid '{where}.tool_calls': duplicate call id."


def _is_call(call: object) -> bool:
    match call:
        case {"id": str(identifier), "function": {"name": str(name), "arguments": str()}}:
            return bool(identifier and name)
        case {"id": str(identifier), "type": "custom", "custom": {"name": str(name), "input": str()}}:
            return bool(identifier and name)
        case _:
            return False


def _order(messages: Sequence[Message], rules: Rules) -> Iterator[str]:
    roles = [str(m.get("role")) for m in messages]
    leading = next((i for i, role in enumerate(roles) if role not in _LEADING), len(roles))
    later = next((i for i, role in enumerate(roles) if i > leading and role in _LEADING), None)
    if later is not None and not rules.later_system:
        yield f"System message must be at the beginning: 'messages[{later}]' is a second system message."
    if "user" not in roles:
        yield "No user query found in messages: at least one message must have the role 'user'."
    if roles[-1] == "assistant" and not rules.prefill:
        yield "The last message must not have the role 'assistant'."
    if rules.alternating:
        yield from _alternation(roles)


def _alternation(roles: Sequence[str]) -> Iterator[str]:
    for index, (before, role) in enumerate(pairwise(roles), start=1):
        if (role == "user" and before in {"user", "tool"}) or role == before == "assistant":
            yield f"Conversation roles must alternate: 'messages[{index}]' is {role} after {before}."


def _calls(messages: Sequence[Message]) -> Iterator[str]:
    """Every call has one result in the tool messages right behind it; no result lacks its call."""
    open_ids: list[object] = []
    answered: set[object] = set()
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            call_id = message.get("tool_call_id")
            if call_id in answered:
                yield f"Duplicate value for 'tool_call_id' of '{call_id}' in 'messages[{index}]'."
            elif call_id not in open_ids:
                yield (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding "
                    f"message with 'tool_calls'. ('messages[{index}]', '{call_id}')"
                )
            answered.add(call_id)
            continue
        yield from _unanswered(open_ids, answered)
        calls = message.get("tool_calls")
        open_ids = [call["id"] for call in calls] if isinstance(calls, list) else []
        answered = set()
    yield from _unanswered(open_ids, answered)


def _unanswered(open_ids: Sequence[object], answered: set[object]) -> Iterator[str]:
    missing = ", ".join(str(call_id) for call_id in open_ids if call_id not in answered)
    if missing:
        yield (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {missing}"
        )
