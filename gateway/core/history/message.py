"""One message as facts that the decisions need, independent of the wire format.

Knows no JSON. A wire format parses a raw slice into these facts once.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal, NamedTuple

Role = Literal["system", "user", "assistant", "tool", "other"]


class Call(NamedTuple):
    """A tool call. Ids may repeat between conversations."""

    id: str
    tool: str


class Message(NamedTuple):
    role: Role
    # SHA-256 of the raw slice and the tenant: equal keys mean equal bytes.
    key: bytes
    # SHA-256 of the canonical form (docs/design.md, Identity): equal fingerprints mean equal content.
    fingerprint: bytes
    # Length of the raw slice; no tokenizer makes more tokens than bytes.
    size_bytes: int
    calls: tuple[Call, ...] = ()
    # Ids of the calls whose results this message carries.
    results: tuple[str, ...] = ()
    has_media: bool = False
    # Stands for history that only upstream can read. Neither it nor anything before it is ever replaced.
    is_opaque: bool = False


def fingerprint_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """SHA-256 over tagged, length-prefixed fields: different lists of fields never have the same encoding."""
    encoded = b"".join([b"%b:%d:%b" % (tag, len(value), value) for tag, value in fields])
    return hashlib.sha256(encoded).digest()
