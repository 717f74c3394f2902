"""Responses requests: splits a body into its envelope and message slices, and reads a slice's facts.

Decides nothing. An item is never rendered again from its facts.
"""

from dataclasses import replace
from typing import Final

from gateway.core.history.message import Message, fingerprint_fields, hash_beginning
from gateway.wire.body import split_fields_or_text
from gateway.wire.canonical import (
    EMPTY,
    Content,
    canonical_arguments,
    canonical_part,
    encode_value,
    flatten_content,
    list_extra_fields,
    without_ephemeral_blocks,
)
from gateway.wire.formats.responses.items import (
    Item,
    find_answered,
    find_call,
    is_opaque,
    joins,
    kind_of,
    parse_items,
    role_of,
)
from gateway.wire.request import Envelope, EnvelopeFields, RequestBody, split_request
from gateway.wire.structure import UNBOUNDED, BodyBounds

# Not part of the canonical form as fields: clients add and drop them, or they are read by name.
_IGNORED_KEYS: Final = frozenset(
    {"type", "role", "content", "output", "arguments", "call_id", "id", "status", "phase", "created_by"}
)
# In these items the id is content.
_IDENTIFIED: Final = ("item_reference", "mcp_approval_request")
_IMAGES: Final = ("image_generation_call",)


def parse_body(data: bytes, bounds: BodyBounds = UNBOUNDED) -> RequestBody:
    """Splits a whole body. Raises Unreadable."""
    return split_request(data, "input", _make_envelope, joins, split_fields_or_text, bounds)


def parse_message(raw: bytes, key: bytes) -> Message:
    """The facts of one slice. key: its message_key. Raises Unreadable.

    Reasoning before an item counts for the size but not for the fingerprint: clients may drop it.
    """
    items = parse_items(raw)
    item = items[-1]
    role = role_of(item)
    content, output = flatten_content(item.get("content")), flatten_content(item.get("output"))
    call, answered = find_call(item), find_answered(item)
    fields = _identify(item, content) + _identify_rest(item, output)
    return Message(
        role="assistant" if len(items) > 1 else role,
        key=key,
        fingerprint=fingerprint_fields(fields),
        size_bytes=len(raw),
        calls=(call,) if call is not None else (),
        results=(answered,) if answered is not None else (),
        has_media=bool(content.others or output.others) or kind_of(item) in _IMAGES,
        is_opaque=is_opaque(item),
        beginning=hash_beginning(next(iter(content.texts or output.texts), "")),
    )


def _identify(item: Item, content: Content) -> list[tuple[bytes, bytes]]:
    """The canonical form of kind, role and content. Of reasoning on its own only the kind counts."""
    kind, role = kind_of(item), role_of(item)
    text = "".join(content.texts)
    if kind == "reasoning":
        return [(b"kind", b"reasoning")]
    if role == "user":
        # A client that drops a block may leave its line end behind, so surrounding space does not count.
        text = without_ephemeral_blocks(text).strip()
    name = item.get("role") if kind == "message" and role == "other" else role
    fields = [(b"kind", encode_value(kind)), (b"role", encode_value(name)), (b"text", encode_value(text))]
    return fields + [(b"part", canonical_part(part)) for part in content.others]


def _identify_rest(item: Item, output: Content) -> list[tuple[bytes, bytes]]:
    """The canonical form of the call, its arguments or its output, and of all fields that are not ignored."""
    kind = kind_of(item)
    if kind == "reasoning":
        return []
    fields: list[tuple[bytes, bytes]] = []
    identity = item.get("id") if kind in _IDENTIFIED else item.get("call_id")
    if identity is not None:
        fields.append((b"call", encode_value(identity)))
    arguments = item.get("arguments")
    if arguments is not None:
        fields.append((b"arguments", canonical_arguments(arguments)))
    fields += [(b"output", encode_value(text)) for text in output.texts]
    fields += [(b"part", canonical_part(part)) for part in output.others]
    return fields + list_extra_fields(item, _IGNORED_KEYS)


def _make_envelope(fields: EnvelopeFields) -> Envelope:
    return replace(
        fields.make_common_envelope("max_output_tokens"),
        system=fields.fingerprint("instructions"),
        system_slice=fields.find_slice("instructions"),
        is_kept=fields.parse("store") is not False,
        is_trimmed=fields.parse("context_management") not in EMPTY,
        is_partial=any(fields.parse(key) is not None for key in ("previous_response_id", "conversation")),
    )
