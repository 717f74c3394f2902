"""Chat Completions requests: splits a body into its envelope and message slices, and reads a slice's facts.

Decides nothing. A message is never rendered again from its facts.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from gateway.core.errors import Unreadable
from gateway.core.history.message import Call, Message, Role, fingerprint_fields, hash_beginning
from gateway.wire.body import JsonFields, parse_object_with_role
from gateway.wire.canonical import (
    EMPTY,
    canonical_arguments,
    canonical_json,
    canonical_part,
    encode_value,
    flatten_content,
    list_extra_fields,
    without_ephemeral_blocks,
)
from gateway.wire.request import Envelope, EnvelopeFields, RequestBody, split_request
from gateway.wire.structure import UNBOUNDED, BodyBounds

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Not part of the canonical form: clients add and drop these fields between two requests.
_IGNORED_KEYS: Final = frozenset(
    {
        *("role", "content", "tool_calls", "tool_call_id", "name", "function_call", "refusal"),
        *("cache_control", "id", "status", "annotations", "logprobs", "provider_specific_fields"),
        *("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"),
        *("reasoning_text", "reasoning_opaque", "thought_signature", "extra_content", "provider"),
    }
)


def parse_body(data: bytes, bounds: BodyBounds = UNBOUNDED) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    return split_request(data, "messages", _make_envelope, bounds=bounds)


class _FoundCall(NamedTuple):
    id: str
    tool: str
    # In canonical form.
    arguments: bytes


def parse_message(raw: bytes, key: bytes) -> Message:
    """The facts of one slice. key: its message_key. Raises Unreadable."""
    message = parse_object_with_role(raw)
    role = _ROLES.get(message["role"], "other")
    texts, media = flatten_content(message.get("content"))
    tool_calls = message.get("tool_calls")
    calls = _find_calls(tool_calls) if tool_calls else []
    answered = message.get("tool_call_id")
    return Message(
        role=role,
        key=key,
        fingerprint=fingerprint_fields(_identify(message, role, "".join(texts), media, calls)),
        size_bytes=len(raw),
        calls=tuple([Call(call.id, call.tool) for call in calls]) if calls else (),
        results=(answered if isinstance(answered, str) else "",) if role == "tool" else (),
        has_media=bool(media),
        beginning=hash_beginning(texts[0] if texts else ""),
    )


def _identify(
    message: JsonFields, role: Role, text: str, media: list[JsonFields], calls: list[_FoundCall]
) -> list[tuple[bytes, bytes]]:
    """The canonical form of role, content, calls, the answered call and all fields that are not ignored."""
    if role == "user":
        # A client that drops a block may leave its line end behind, so surrounding space does not count.
        text = without_ephemeral_blocks(text).strip()
    name = message["role"] if role == "other" else role
    fields = [(b"role", encode_value(name)), (b"text", encode_value(text))]
    if media:
        fields += [(b"part", canonical_part(part)) for part in media]
    for call in calls:
        fields += [
            (b"call", encode_value(call.id)),
            (b"tool", encode_value(call.tool)),
            (b"arguments", call.arguments),
        ]
    if role == "tool":
        fields.append((b"answers", encode_value(message.get("tool_call_id"))))
    if role in ("user", "system", "other") and message.get("name"):
        fields.append((b"name", encode_value(message["name"])))
    for key in ("function_call", "refusal"):
        if message.get(key) not in EMPTY:
            fields.append((key.encode(), canonical_json(message[key])))
    return fields + list_extra_fields(message, _IGNORED_KEYS)


def _find_calls(calls: object) -> list[_FoundCall]:
    """A call of an unknown type is hashed as a whole, in place of its arguments."""
    found = []
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, dict):
            raise Unreadable("tool call is not an object")
        kind = call.get("type", "function")
        body = call.get(kind if isinstance(kind, str) else "function")
        detail = body if isinstance(body, dict) else {"input": call}
        canonical = canonical_arguments(detail.get("arguments", detail.get("input")))
        found.append(_FoundCall(str(call.get("id") or ""), str(detail.get("name") or ""), canonical))
    return found


def _make_envelope(fields: EnvelopeFields) -> Envelope:
    options = fields.parse("stream_options")
    return replace(
        fields.make_common_envelope("max_completion_tokens", "max_tokens"),
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        stream_options_slice=fields.find_slice("stream_options"),
    )
