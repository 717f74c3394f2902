"""What Anthropic refuses in a Messages request, apart from its length.

Pure functions: a request in, the text of the refusal or None out. Unknown fields are refused, as Anthropic
does.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tests.toy.seal import sign, unseal
from tests.toy.validity import STRICT, Rules

Block = Mapping[str, object]
_FIELD_NAMES = """
    model messages max_tokens system tools tool_choice temperature top_p top_k stream stop_sequences metadata
    thinking service_tier container mcp_servers context_management betas output_config output_format
    inference_geo speed cache_control thread
"""
_FIELDS = frozenset(_FIELD_NAMES.split())
_MAX_MARKS = 4
_MIN_THINKING_TOKENS = 1_024
_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_USERS = frozenset({"text", "image", "document", "search_result", "tool_result", "container_upload"})
_ASSISTANTS = frozenset({"text", "tool_use"}) | _THOUGHTS
_SYSTEMS = frozenset({"text"})
# Of tools that Anthropic runs itself: known, not looked into.
_HOSTED = re.compile(r"server_tool_use|mcp_tool_use|[a-z_]+_tool_result|compaction")


def find_violation(request: object, rules: Rules = STRICT) -> str | None:
    """The first reason to refuse: envelope, then each message, then calls, thinking and cache marks."""
    if not isinstance(request, dict):
        return "The request body is not valid JSON."
    return next(_violations(request, rules), None)


def find_count_violation(request: object) -> str | None:
    """The same for a request that is only to be counted."""
    if not isinstance(request, dict):
        return find_violation(request)
    return find_violation({"max_tokens": 1 << 30} | request)


def _violations(request: Block, rules: Rules) -> Iterator[str]:
    yield from _envelope(request)
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "messages: at least one message is required"
        return
    for index, message in enumerate(messages):
        yield from _message(f"messages.{index}", message, index == len(messages) - 1, rules)
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    yield from _instructions(messages)
    # The following checks are about user and assistant messages.
    messages = [message for message in messages if message["role"] != "system"]
    blocks = [read_blocks(message.get("content")) for message in messages]
    yield from _calls(messages, blocks)
    if any(block.get("type") == "tool_result" for part in blocks for block in part) and not request.get(
        "tools"
    ):
        yield "Requests which have `tool_use` or `tool_result` blocks in `messages` must define `tools`."
    yield from _thoughts(request, blocks, rules)
    marks = count_marks([request.get("system"), request.get("tools"), messages])
    if marks > _MAX_MARKS:
        yield f"A maximum of {_MAX_MARKS} blocks with cache_control may be provided. Found {marks}."
    yield from _ending(messages[-1])


def read_blocks(content: object) -> list[Block]:
    """A string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _envelope(request: Block) -> Iterator[str]:
    if not request.get("model") or not isinstance(request["model"], str):
        yield "model: Field required"
    limit = request.get("max_tokens")
    if limit is None:
        yield "max_tokens: Field required"
    elif not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        yield "max_tokens: Input should be greater than or equal to 1"
    for name in sorted(request.keys() - _FIELDS):
        yield f"{name}: Extra inputs are not permitted"
    yield from _system(request.get("system"))
    yield from _tools(request)
    yield from _budget(request)


def _system(system: object) -> Iterator[str]:
    if system is not None and not isinstance(system, str | list):
        yield "system: Input should be a valid string or list"
    for index, block in enumerate(system if isinstance(system, list) else ()):
        if not isinstance(block, dict) or block.get("type") != "text":
            yield f"system.{index}.type: Input should be 'text'"
        elif not block.get("text"):
            yield "system: text content blocks must be non-empty"


def _tools(request: Block) -> Iterator[str]:
    tools = request.get("tools")
    if request.get("tool_choice") is not None and not tools:
        yield "tool_choice: `tool_choice` may only be specified while providing `tools`."
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        is_own = isinstance(tool, dict) and tool.get("type") in (None, "custom")
        if not isinstance(tool, dict) or not tool.get("name"):
            yield f"tools.{index}.name: Field required"
        elif is_own and not isinstance(tool.get("input_schema"), dict):
            yield f"tools.{index}.custom.input_schema: Field required"


def _budget(request: Block) -> Iterator[str]:
    thinking, limit = request.get("thinking"), request.get("max_tokens")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int):
        yield "thinking.enabled.budget_tokens: Field required"
        return
    if budget < _MIN_THINKING_TOKENS:
        yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
    if isinstance(limit, int) and budget >= limit:
        yield "`max_tokens` must be greater than `thinking.budget_tokens`."
    if request.get("temperature") not in (None, 1):
        yield "`temperature` may only be set to 1 when thinking is enabled."


def _instructions(messages: Sequence[Block]) -> Iterator[str]:
    """A system message in between stands behind a user's, and before the next reply or at the end."""
    for index, (before, message) in enumerate(pairwise(messages), start=1):
        if message["role"] == "system" and before["role"] != "user":
            yield f"messages.{index}: a system message must follow a user message"
        if before["role"] == "system" and message["role"] != "assistant":
            yield f"messages.{index}: a system message must be followed by an assistant message"


def _message(where: str, message: object, is_last: bool, rules: Rules) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"{where}: Input should be a valid dictionary"
        return
    role, content = str(message.get("role")), message.get("content")
    if role not in {"user", "assistant"} and not (rules.later_system and role == "system"):
        yield f"{where}: Unexpected role {role!r}. Allowed roles are 'user' and 'assistant'."
    for name in sorted(message.keys() - {"role", "content"}):
        yield f"{where}.{name}: Extra inputs are not permitted"
    if not isinstance(content, str | list):
        yield f"{where}.content: Input should be a valid string or list"
    if not content and not (is_last and role == "assistant"):
        exception = "except for the optional final assistant message"
        yield f"{where}: all messages must have non-empty content {exception}"
    if isinstance(content, str) and content and not content.strip():
        yield "messages: text content blocks must contain non-whitespace text"
    allowed = {"user": _USERS, "system": _SYSTEMS}.get(role, _ASSISTANTS)
    for index, block in enumerate(content if isinstance(content, list) else ()):
        yield from _block(f"{where}.content.{index}", block, allowed)


def _block(where: str, block: object, allowed: frozenset[str]) -> Iterator[str]:
    kind = str(block.get("type")) if isinstance(block, dict) else None
    if not isinstance(block, dict) or (kind not in allowed and not _HOSTED.fullmatch(str(kind))):
        yield f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
        return
    if kind == "text":
        yield from _text(block)
    if kind == "tool_use":
        if not isinstance(block.get("input"), dict):
            yield f"{where}.tool_use.input: Input should be a valid dictionary"
        if not block.get("name") or not _TOOL_ID.fullmatch(str(block.get("id") or "")):
            yield f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if kind == "tool_result":
        for part in read_blocks(block.get("content")):
            yield from _text(part)
    if kind in _THOUGHTS and "cache_control" in block:
        yield f"{where}.{kind}.cache_control: Extra inputs are not permitted"


def _text(block: Block) -> Iterator[str]:
    if block.get("type") == "text" and not str(block.get("text") or "").strip():
        words = "be non-empty" if not block.get("text") else "contain non-whitespace text"
        yield f"messages: text content blocks must {words}"


def _ids(blocks: Sequence[Block], kind: str, key: str) -> list[str]:
    return [str(block.get(key)) for block in blocks if block.get("type") == kind]


def _calls(messages: Sequence[Block], blocks: Sequence[list[Block]]) -> Iterator[str]:
    """Every call has one result at the start of the next message; no result lacks its call."""
    used = [call_id for part in blocks for call_id in _ids(part, "tool_use", "id")]
    if len(set(used)) < len(used):
        yield "messages: `tool_use` ids must be unique"
    before: list[str] = []
    for index, part in enumerate(blocks):
        results = _ids(part, "tool_result", "tool_use_id")
        yield from _unanswered(index, before, results)
        for call_id in results:
            if call_id not in before:
                yield (
                    f"messages.{index}.content: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{call_id}. Each `tool_result` block must have a corresponding `tool_use` block in the "
                    "previous message."
                )
        if len(set(results)) < len(results):
            yield f"messages.{index}.content: each tool_use must have a single result."
        kinds = [block.get("type") == "tool_result" for block in part]
        if any(later and not first for first, later in pairwise(kinds)):
            yield f"messages.{index}.content: `tool_result` blocks must come first in the content array."
        before = _ids(part, "tool_use", "id")
    yield from _unanswered(len(blocks), before, ())


def _unanswered(index: int, calls: Sequence[object], results: Sequence[object]) -> Iterator[str]:
    missing = ", ".join(str(call_id) for call_id in calls if call_id not in results)
    if missing:
        yield (
            f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately "
            f"after: {missing}. Each `tool_use` block must have a corresponding `tool_result` block in the "
            "next message."
        )


def _thoughts(request: Block, blocks: Sequence[list[Block]], rules: Rules) -> Iterator[str]:
    """Thinking comes back as it was handed out, never last, and leads the turn that is still open."""
    for index, part in enumerate(blocks):
        for at, block in enumerate(part):
            if str(block.get("type")) in _THOUGHTS and not (rules.foreign_secrets or _is_ours(block)):
                yield f"messages.{index}.content.{at}: Invalid `signature` in `{block['type']}` block"
        if part and str(part[-1].get("type")) in _THOUGHTS:
            yield f"messages.{index}: The final block in an assistant message cannot be `thinking`."
    thinking = request.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled" or len(blocks) < 2:
        return
    calling, last = blocks[-2], blocks[-1]
    is_open = bool(_ids(last, "tool_result", "tool_use_id"))
    if is_open and str(calling[0].get("type")) not in _THOUGHTS and not _has_begun_thinking(blocks):
        yield (
            f"messages.{len(blocks) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`, but "
            f"found `{calling[0].get('type')}`. When `thinking` is enabled, a final `assistant` message must "
            "start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` "
            "blocks)."
        )


def _has_begun_thinking(blocks: Sequence[list[Block]]) -> bool:
    """A model that does not think between its calls thinks once in a turn, before the first one."""
    start = len(blocks) - 2
    while start >= 2 and _ids(blocks[start - 1], "tool_result", "tool_use_id"):
        start -= 2
    return bool(blocks[start]) and str(blocks[start][0].get("type")) in _THOUGHTS


def _is_ours(block: Block) -> bool:
    if block.get("type") == "redacted_thinking":
        return unseal(str(block.get("data"))) is not None
    return block.get("signature") == sign(str(block.get("thinking")))


def count_marks(value: object) -> int:
    """How often `cache_control` is set, at any depth but inside the arguments of a call."""
    if isinstance(value, list):
        return sum(map(count_marks, value))
    if not isinstance(value, dict):
        return 0
    nested = sum(count_marks(part) for key, part in value.items() if key == "content")
    return nested + (value.get("cache_control") is not None)


def _ending(last: Block) -> Iterator[str]:
    blocks = read_blocks(last.get("content"))
    text = str(blocks[-1].get("text", "")) if blocks else ""
    if last.get("role") == "assistant" and text != text.rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"
