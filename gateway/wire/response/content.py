"""Finds out whether the model has begun its reply: which documents hold a part of it.

Reads Chat Completions (whole and streamed), Responses and Anthropic Messages, like `facts`. Ignores errors.
"""

from gateway.wire.response.facts import choices_of, find_finish_reason
from gateway.wire.wire_format import JsonObject

# A delta or message with only these fields has no content.
_EMPTY_KEYS = frozenset({"role", "name", "id", "object", "type", "provider_specific_fields"})
_EMPTY_TYPES = frozenset(
    {
        *("message_start", "ping", "keepalive", "keep-alive", "heartbeat"),
        *("response.created", "response.queued", "response.in_progress"),
    }
)
_BLOCK_VALUES = ("text", "thinking", "partial_json", "data", "signature", "citation")


def has_content(document: JsonObject) -> bool:
    """Text, reasoning, a tool call, a refusal by the model, or anything else that a client may show."""
    if any(_has_choice_content(choice) for choice in choices_of(document)):
        return True
    match document:
        case {"type": "content_block_start", "content_block": dict(block)}:
            return _has_block_content(block)
        case {"type": "content_block_delta", "delta": dict(delta)}:
            return _has_block_value(delta)
        case {"type": "message", "content": list(blocks)}:
            return any(isinstance(block, dict) and _has_block_content(block) for block in blocks)
        case {"object": "response", "output": output}:
            return bool(output)
        case {"type": str(kind)}:
            # Responses has events for each item and delta. One of these means that the reply has begun.
            return kind.startswith("response.") and kind not in _EMPTY_TYPES and not _is_terminal(kind)
    return False


def is_known_empty(document: JsonObject) -> bool:
    """Whether it is of a known kind without content: the start of a stream, a keep-alive, or usage."""
    kind = document.get("type")
    if isinstance(kind, str) and kind in _EMPTY_TYPES:
        return True
    is_known = isinstance(document.get("choices"), list) or kind in (
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
    )
    return is_known and not has_content(document) and find_finish_reason(document) is None


def list_finish_reasons(document: JsonObject) -> list[str]:
    """Why the reply ended: the reason of the API, and that of the provider behind a router."""
    reasons = [
        find_finish_reason(document),
        *(choice.get("native_finish_reason") for choice in choices_of(document)),
    ]
    return [reason for reason in reasons if isinstance(reason, str) and reason]


def _has_choice_content(choice: JsonObject) -> bool:
    parts = [choice.get("delta"), choice.get("message")]
    if choice.get("text"):
        return True
    return any(
        bool(value) and key not in _EMPTY_KEYS
        for part in parts
        if isinstance(part, dict)
        for key, value in part.items()
    )


def _has_block_content(block: JsonObject) -> bool:
    """Of a block of Anthropic Messages. Texts begin empty; a tool call is content from its beginning."""
    return block.get("type") not in ("text", "thinking") or _has_block_value(block)


def _has_block_value(block: JsonObject) -> bool:
    return any(block.get(key) for key in _BLOCK_VALUES)


def _is_terminal(kind: str) -> bool:
    return kind in ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
