"""Responses requests: a body as envelope and slices, and one slice as facts.

Knows the format's words. Decides nothing, and never writes an item back from what it has read.
"""

from dataclasses import replace
from typing import Final

from gateway.core.history.message import Call, Message, fingerprint_fields
from gateway.wire.body import split_fields_or_text
from gateway.wire.canonical import (
    EMPTY,
    canonical_arguments,
    canonical_part,
    encode_value,
    flatten_content,
    list_extra_fields,
    without_ephemeral_blocks,
)
from gateway.wire.formats.responses.items import (
    Item,
    decode_items,
    is_opaque,
    joins,
    read_answered,
    read_call,
    read_kind,
    read_role,
)
from gateway.wire.request import Envelope, EnvelopeFields, RequestBody, split_request

# Neither identity nor content: clients add and drop these on the way (DESIGN §3).
_IGNORED_KEYS: Final = frozenset(
    {"type", "role", "content", "output", "arguments", "call_id", "id", "status", "phase", "created_by"}
)
# Here the id is what the item says.
_NAMED: Final = ("item_reference", "mcp_approval_request")
_PICTURES: Final = ("image_generation_call",)


def parse_body(data: bytes) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    return split_request(data, "input", _read_envelope, joins, split_fields_or_text)


def parse_message(raw: bytes, key: bytes) -> Message:
    """One slice as facts; `key`: its message_key. Raises Unreadable.

    The reasoning before an item has a place and a size with it, but no identity: clients drop it and keep it.
    """
    items = decode_items(raw)
    item = items[-1]
    role = read_role(item)
    content, output = flatten_content(item.get("content")), flatten_content(item.get("output"))
    call, answered = read_call(item), read_answered(item)
    fields = _identify(item, content) + _identify_rest(item, output)
    return Message(
        role="assistant" if len(items) > 1 else role,
        key=key,
        fingerprint=fingerprint_fields(fields),
        size_bytes=len(raw),
        calls=(Call(*call),) if call is not None else (),
        results=(answered,) if answered is not None else (),
        has_media=bool(content[1] or output[1]) or read_kind(item) in _PICTURES,
        is_opaque=is_opaque(item),
    )


def _identify(item: Item, content: tuple[list[str], list[dict[str, object]]]) -> list[tuple[bytes, bytes]]:
    """Kind, role and content; of reasoning that stands alone nothing else."""
    kind, role = read_kind(item), read_role(item)
    text = "".join(content[0])
    if kind == "reasoning":
        return [(b"kind", b"reasoning")]
    if role == "user":
        # A dropped block leaves its line end behind: space around what a user says is not what he says.
        text = without_ephemeral_blocks(text).strip()
    name = item.get("role") if kind == "message" and role == "other" else role
    fields = [(b"kind", encode_value(kind)), (b"role", encode_value(name)), (b"text", encode_value(text))]
    return fields + [(b"part", canonical_part(part)) for part in content[1]]


def _identify_rest(
    item: Item, output: tuple[list[str], list[dict[str, object]]]
) -> list[tuple[bytes, bytes]]:
    """The call, its arguments or its output, and the fields of which nothing is known."""
    kind = read_kind(item)
    if kind == "reasoning":
        return []
    fields: list[tuple[bytes, bytes]] = []
    identity = item.get("id") if kind in _NAMED else item.get("call_id")
    if identity is not None:
        fields.append((b"call", encode_value(identity)))
    arguments = item.get("arguments")
    if arguments is not None:
        fields.append((b"arguments", canonical_arguments(arguments)))
    fields += [(b"output", encode_value(text)) for text in output[0]]
    fields += [(b"part", canonical_part(part)) for part in output[1]]
    return fields + list_extra_fields(item, _IGNORED_KEYS)


def _read_envelope(fields: EnvelopeFields) -> Envelope:
    return replace(
        fields.begin_envelope("max_output_tokens"),
        system=fields.fingerprint("instructions"),
        system_slice=fields.place("instructions"),
        is_kept=fields.read("store") is not False,
        is_trimmed=fields.read("context_management") not in EMPTY,
        is_partial=any(fields.read(key) is not None for key in ("previous_response_id", "conversation")),
    )
