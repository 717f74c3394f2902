"""Chat Completions requests: a body as envelope and slices, and one slice as facts.

Knows the format's words. Decides nothing, and never writes a message back from what it has read.
"""

from dataclasses import replace
from typing import Final, Literal, cast

import msgspec

from gateway.core.errors import Unreadable
from gateway.core.history.message import (
    Call,
    Message,
    Role,
    fingerprint_encoded,
    fingerprint_fields,
    make_field_format,
)
from gateway.wire.body import read_message_object
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

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Neither identity nor content: clients add and drop these on the way (DESIGN §3).
_IGNORED_KEYS: Final = frozenset(
    {
        *("role", "content", "tool_calls", "tool_call_id", "name", "function_call", "refusal"),
        *("cache_control", "id", "status", "annotations", "logprobs", "provider_specific_fields"),
        *("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"),
        *("reasoning_text", "reasoning_opaque", "thought_signature", "extra_content", "provider"),
    }
)
_SAID: Final = make_field_format(b"role", b"text")
_ANSWERS: Final = make_field_format(b"answers")
_CALLS: Final = make_field_format(b"call", b"tool", b"arguments")
# Nothing beyond these: nothing more to look for.
_USUAL_KEYS: Final = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})


def parse_body(data: bytes) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    return split_request(data, "messages", _read_envelope)


class _PlainFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _PlainCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str
    type: Literal["function"]
    function: _PlainFunction


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What most messages are: a role, a text, and perhaps calls, or the call that it answers."""

    role: Literal["user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_PlainCall] | None = None
    tool_call_id: str | None = None


_decode_plain = msgspec.json.Decoder(_PlainMessage).decode


def read_message(raw: bytes, key: bytes) -> Message:
    """One slice as facts; `key`: its message_key. Raises Unreadable.

    A typed reading of the usual forms comes first: it says the same at a third of the price.
    """
    try:
        plain = _decode_plain(raw)
    except (ValueError, RecursionError):
        return _read_any_message(raw, key)
    role, text, calls, answered = plain.role, plain.content, plain.tool_calls, plain.tool_call_id
    if role == "assistant" and calls and answered is None:
        return _read_calling(text, calls, key, len(raw))
    if text is None or calls is not None or (role == "tool") != (answered is not None):
        return _read_any_message(raw, key)
    if role == "user":
        text = without_ephemeral_blocks(text).strip()
    # What msgspec has decoded holds no lone surrogate.
    name, said = role.encode(), text.encode()
    encoded = _SAID % (len(name), name, len(said), said)
    if answered is None:
        return Message(role, key, fingerprint_encoded(encoded), len(raw))
    whom = answered.encode()
    return Message(
        role, key, fingerprint_encoded(encoded + _ANSWERS % (len(whom), whom)), len(raw), (), (answered,)
    )


def _read_calling(text: str | None, plain_calls: list[_PlainCall], key: bytes, size_bytes: int) -> Message:
    """What an agent's step looks like, as a rule: calls, and perhaps a text before them."""
    said = text.encode() if text else b""
    encoded = _SAID % (len(b"assistant"), b"assistant", len(said), said)
    calls = []
    for call in plain_calls:
        tool = call.function.name
        identity, name = call.id.encode(), tool.encode()
        arguments = canonical_arguments(call.function.arguments)
        encoded += _CALLS % (len(identity), identity, len(name), name, len(arguments), arguments)
        calls.append(Call(call.id, tool))
    return Message("assistant", key, fingerprint_encoded(encoded), size_bytes, tuple(calls))


def _read_any_message(raw: bytes, key: bytes) -> Message:
    message = read_message_object(raw)
    role = _ROLES.get(message["role"], "other")
    texts, media = flatten_content(message.get("content"))
    calls = _read_calls(message.get("tool_calls"))
    answered = message.get("tool_call_id")
    is_result = role == "tool"
    return Message(
        role=role,
        key=key,
        fingerprint=fingerprint_fields(_canonical_fields(message, role, texts, media, calls)),
        size_bytes=len(raw),
        calls=tuple([Call(identity, name) for identity, name, _ in calls]),
        results=(answered if isinstance(answered, str) else "",) if is_result else (),
        has_media=bool(media),
    )


def _canonical_fields(
    message: dict[str, object],
    role: Role,
    texts: list[str],
    media: list[dict[str, object]],
    calls: list[tuple[str, str, bytes]],
) -> list[tuple[bytes, bytes]]:
    text = texts[0] if len(texts) == 1 else "".join(texts)
    if role == "user":
        # A dropped block leaves its line end behind: space around what a user says is not what he says.
        text = without_ephemeral_blocks(text).strip()
    name = message["role"] if role == "other" else role
    fields = [(b"role", encode_value(name)), (b"text", encode_value(text))]
    fields.extend([(b"part", canonical_part(part)) for part in media])
    for identity, tool, arguments in calls:
        fields += [
            (b"call", encode_value(identity)),
            (b"tool", encode_value(tool)),
            (b"arguments", arguments),
        ]
    if role == "tool":
        fields.append((b"answers", encode_value(message.get("tool_call_id"))))
    if role in ("user", "system", "other") and message.get("name"):
        fields.append((b"name", encode_value(message["name"])))
    if message.keys() <= _USUAL_KEYS:
        return fields
    for key in ("function_call", "refusal"):
        if message.get(key) not in EMPTY:
            fields.append((key.encode(), canonical_json(message[key])))
    return fields + list_extra_fields(message, _IGNORED_KEYS)


def _read_calls(calls: object) -> list[tuple[str, str, bytes]]:
    """Id, tool name and canonical arguments of each tool call; calls of unknown types by their JSON."""
    found = []
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, dict):
            raise Unreadable("tool call is not an object")
        kind = call.get("type", "function")
        body = call.get(kind if isinstance(kind, str) else "function")
        detail = cast("dict[str, object]", body) if isinstance(body, dict) else {"input": call}
        canonical = canonical_arguments(detail.get("arguments", detail.get("input")))
        found.append((str(call.get("id") or ""), str(detail.get("name") or ""), canonical))
    return found


def _read_envelope(fields: EnvelopeFields) -> Envelope:
    options = fields.read("stream_options")
    return replace(
        fields.begin_envelope("max_completion_tokens", "max_tokens"),
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        stream_options=fields.place("stream_options"),
    )
