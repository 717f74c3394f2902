"""One message as facts: what the decisions need to know, in the words of no wire format.

Knows nothing of JSON: a wire format reads a raw slice into these facts and never again.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal, NamedTuple

Role = Literal["system", "user", "assistant", "tool", "other"]


class Call(NamedTuple):
    """A tool call: its id and the tool's name. Ids may repeat between conversations (FACTS §2)."""

    id: str
    tool: str


class Message(NamedTuple):
    """Facts of one message.

    key: SHA-256 of the raw slice with the tenant mixed in: equal keys are equal bytes.
    digest: SHA-256 of the canonical form (DESIGN §3): equal digests say the same thing.
    size_bytes: length of the raw slice; no tokenizer makes more tokens than bytes.
    results: ids of the calls whose results this message carries.
    is_sealed: stands for history that only upstream can read; it is never folded, nor anything before it.
    """

    role: Role
    key: bytes
    fingerprint: bytes
    size_bytes: int
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    has_media: bool = False
    is_opaque: bool = False


def fingerprint_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """SHA-256 over tagged, length-prefixed fields: no two lists of fields share an encoding."""
    encoded = b"".join([b"%b:%d:%b" % (tag, len(value), value) for tag, value in fields])
    return hashlib.sha256(encoded).digest()
