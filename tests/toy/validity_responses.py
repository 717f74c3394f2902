"""What OpenAI refuses in a Responses request, apart from its length, once all its references are filled in.

Pure functions: a request in, the refusal or None out. The content of other known item types is not checked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.toy.memory import read_items
from tests.toy.refusal import Refusal
from tests.toy.seal import unseal
from tests.toy.validity import STRICT, Rules

Item = Mapping[str, object]
_MIN_OUTPUT_TOKENS = 16
# Which types answer a call. Codex answers a local shell call as if it were a function's.
_ANSWERS = {
    "function_call": {"function_call_output"},
    "custom_tool_call": {"custom_tool_call_output"},
    "local_shell_call": {"local_shell_call_output", "function_call_output"},
    "shell_call": {"shell_call_output"},
    "computer_call": {"computer_call_output"},
    "apply_patch_call": {"apply_patch_call_output"},
    "mcp_approval_request": {"mcp_approval_response"},
}
_OUTPUTS = frozenset().union(*_ANSWERS.values())
_ROLES = frozenset({"user", "assistant", "system", "developer"})
_UNREAD_NAMES = """
    compaction compaction_trigger web_search_call file_search_call image_generation_call
    code_interpreter_call mcp_list_tools mcp_call tool_search_call tool_search_output
"""
_UNREAD = frozenset(_UNREAD_NAMES.split())
_KNOWN = _UNREAD | _ANSWERS.keys() | _OUTPUTS | {"message", "reasoning"}
_SAID, _GIVEN = frozenset({"output_text", "refusal"}), frozenset({"input_text", "input_image", "input_file"})
_ID_STARTS = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_OF_CHAT = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}


def find_violation(request: object, rules: Rules = STRICT) -> Refusal | None:
    """The first reason to refuse: envelope, then each item, then calls and outputs, then reasoning."""
    if not isinstance(request, dict):
        return Refusal(message="We could not parse the JSON body of your request.")
    return next(_violations(request, rules), None)


def _violations(request: Item, rules: Rules) -> Iterator[Refusal]:
    yield from map(_refuse, _envelope(request))
    items = read_items(request)
    if not items:
        yield _refuse("Missing required parameter: 'input'.")
    for index, item in enumerate(items):
        yield from map(_refuse, _item(f"input[{index}]", item, rules))
    read = [item for item in items if isinstance(item, dict)]
    if not any(item.get("role") == "user" for item in read):
        yield _refuse("No user query found in input: at least one message must have the role 'user'.")
    yield from map(_refuse, _ids(read))
    yield from map(_refuse, _calls(read))
    if any(_kind(item) in _OUTPUTS for item in read) and not request.get("tools"):
        yield _refuse("Invalid 'input': tool call outputs require 'tools' in the request.")
    yield from _reasoning(read, rules)


def _refuse(message: str) -> Refusal:
    return Refusal(message=message, param="input")


def _envelope(request: Item) -> Iterator[str]:
    if not request.get("model") or not isinstance(request["model"], str):
        yield "you must provide a model parameter"
    for name in _OF_CHAT.keys() & request.keys():
        moved = f"In the Responses API, this parameter has moved to '{_OF_CHAT[name]}'."
        yield f"Unsupported parameter: '{name}'. {moved}"
    if not isinstance(request.get("instructions"), str | None):
        yield "Invalid type for 'instructions': expected a string."
    yield from _options(request)
    yield from _tools(request)


def _options(request: Item) -> Iterator[str]:
    options = request.get("stream_options")
    if options is not None and not request.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    if isinstance(options, dict) and "include_usage" in options:
        yield "Unknown parameter: 'stream_options.include_usage'."
    limit = request.get("max_output_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < _MIN_OUTPUT_TOKENS):
        problem = f"Expected a value >= {_MIN_OUTPUT_TOKENS}, but got {limit!r} instead."
        yield f"Invalid 'max_output_tokens': integer below minimum value. {problem}"


def _tools(request: Item) -> Iterator[str]:
    tools, choice = request.get("tools") or [], request.get("tool_choice")
    if choice not in (None, "auto", "none") and not tools:
        yield f"Tool choice '{choice}' must be specified with 'tools' parameter."
    for index, tool in enumerate(tools if isinstance(tools, list) else [tools]):
        if not isinstance(tool, dict) or not tool.get("type"):
            yield f"Missing required parameter: 'tools[{index}].type'."
        elif tool["type"] == "function" and not tool.get("name"):
            yield f"Missing required parameter: 'tools[{index}].name'."


def _item(where: str, item: object, rules: Rules) -> Iterator[str]:
    if not isinstance(item, dict):
        yield f"Invalid type for '{where}': expected an object."
        return
    kind = _kind(item)
    if kind not in _KNOWN and not rules.unknown_items:
        yield f"Invalid value: {kind!r}. Supported values are: {', '.join(sorted(_KNOWN))}."
    start, identifier = _ID_STARTS.get(kind), item.get("id")
    if start and identifier is not None and not str(identifier).startswith(start):
        yield f"Invalid '{where}.id': '{identifier}'. Expected an ID that begins with '{start}'."
    yield from _CHECKS.get(kind, _any)(where, item)


def _kind(item: Item) -> str:
    """The type of a message may be missing."""
    return str(item.get("type") or ("message" if "role" in item else None))


def _message(where: str, item: Item) -> Iterator[str]:
    role, content = str(item.get("role")), item.get("content")
    if role not in _ROLES:
        yield f"Invalid value: {role!r}. Supported values are: {', '.join(sorted(_ROLES))}."
    if not isinstance(content, str | list):
        yield f"Invalid type for '{where}.content': expected one of a string or array of objects."
    if not content and role != "assistant":
        yield f"Invalid value for '{where}.content': expected a non-empty string, got {content!r}."
    if isinstance(content, list):
        allowed = _SAID if role == "assistant" else _GIVEN
        yield from _parts(f"{where}.content", content, allowed)


def _parts(where: str, parts: Sequence[object], allowed: frozenset[str]) -> Iterator[str]:
    for index, part in enumerate(parts):
        kind = str(part.get("type")) if isinstance(part, dict) else None
        if kind not in allowed:
            yield f"Invalid value: {kind!r}. Supported values are: {sorted(allowed)}. ('{where}[{index}]')"
        elif kind == "input_text" and isinstance(part, dict) and not part.get("text"):
            yield f"Invalid value for '{where}[{index}].text': text must be non-empty."


def _function_call(where: str, item: Item) -> Iterator[str]:
    yield from _required(where, item, "call_id", "name")
    if not isinstance(item.get("arguments"), str):
        yield f"Missing required parameter: '{where}.arguments'."


def _output(where: str, item: Item) -> Iterator[str]:
    yield from _required(where, item, "call_id")
    output = item.get("output")
    if not isinstance(output, str | list):
        yield f"Missing required parameter: '{where}.output'."
    if isinstance(output, list):
        yield from _parts(f"{where}.output", output, _GIVEN)


def _reasoning_item(where: str, item: Item) -> Iterator[str]:
    if not isinstance(item.get("summary"), list):
        yield f"Missing required parameter: '{where}.summary'."


def _call(where: str, item: Item) -> Iterator[str]:
    yield from _required(where, item, "call_id")


def _approval(where: str, item: Item) -> Iterator[str]:
    yield from _required(
        where, item, "id" if item["type"] == "mcp_approval_request" else "approval_request_id"
    )


def _any(where: str, item: Item) -> Iterator[str]:
    return iter(())


def _required(where: str, item: Item, *names: str) -> Iterator[str]:
    for name in names:
        if not isinstance(item.get(name), str) or not item[name]:
            yield f"Missing required parameter: '{where}.{name}'."


_CHECKS: dict[str, Callable[[str, Item], Iterator[str]]] = {
    "message": _message,
    "reasoning": _reasoning_item,
    "function_call": _function_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "custom_tool_call": _call,
    "shell_call": _call,
    "computer_call": _call,
    "apply_patch_call": _call,
    "mcp_approval_request": _approval,
    "mcp_approval_response": _approval,
}


def _ids(items: Sequence[Item]) -> Iterator[str]:
    seen: set[str] = set()
    for item in items:
        identifier = str(item.get("id"))
        if item.get("id") is not None and identifier in seen and _kind(item) not in _OUTPUTS:
            remedy = "Remove duplicate items from your input and try again."
            yield f"Duplicate item found with id {identifier}. {remedy}"
        seen.add(identifier)


def read_call_id(item: Item) -> str:
    """By which a call and its output know each other; an approval has no name of its own for it."""
    return str(item.get("call_id") or item.get("approval_request_id") or item.get("id"))


def _calls(items: Sequence[Item]) -> Iterator[str]:
    """Every call has one output somewhere behind it; no output lacks its call."""
    open_calls: dict[str, str] = {}
    done: set[str] = set()
    for item in items:
        kind, call_id = _kind(item), read_call_id(item)
        if kind in _ANSWERS:
            if call_id in open_calls or call_id in done:
                yield f"Duplicate value for 'call_id' of '{call_id}'."
            open_calls[call_id] = kind
        elif kind in _OUTPUTS:
            words = kind.replace("_", " ")
            if call_id in done:
                yield f"Duplicate {words} for call_id {call_id}."
            elif kind not in _ANSWERS.get(open_calls.pop(call_id, ""), ()):
                yield f"No tool call found for {words} with call_id {call_id}."
            done.add(call_id)
    for call_id, kind in open_calls.items():
        yield f"No tool output found for {kind.replace('_', ' ')} {call_id}."


def _reasoning(items: Sequence[Item], rules: Rules) -> Iterator[Refusal]:
    """Reasoning is directly before the item that it led to, and unchanged."""
    followers = [*items[1:], {}]
    for item, follower in zip(items, followers, strict=True):
        if _kind(item) != "reasoning":
            continue
        name = item.get("id") or "(no id)"
        alone = f"Item '{name}' of type 'reasoning' was provided without its required following item."
        if not _follows(follower):
            yield _refuse(alone)
        secret = item.get("encrypted_content")
        if secret is None or rules.foreign_secrets:
            continue
        sealed = unseal(str(secret))
        if sealed is None:
            problem = "could not be verified. Reason: Encrypted content could not be decrypted or parsed."
            words = f"The encrypted content {str(secret)[:12]}... {problem}"
            yield Refusal(message=words, code="invalid_encrypted_content", param="input")
        elif sealed.follower != make_follower_mark(follower):
            yield _refuse(alone)


def _follows(item: Item) -> bool:
    kind = _kind(item)
    is_said = kind == "message" and item.get("role") == "assistant"
    return is_said or kind in _ANSWERS or kind in _UNREAD or kind == "reasoning"


def make_follower_mark(item: Item) -> str:
    """The item that reasoning is bound to: a call by its id, or text."""
    return "message" if _kind(item) == "message" else read_call_id(item)
