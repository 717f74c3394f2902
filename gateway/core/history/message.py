"""One message as facts that the decisions need, independent of the wire format.

Knows no JSON. A wire format parses a raw slice into these facts once.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

Role = Literal["system", "user", "assistant", "tool", "other"]

BEGINNING_CHARS: Final = 64
_BEGINNING_BYTES: Final = 8
# ToolOutputTrimmer of openai-agents writes a line before the preview that it leaves of a result.
_PREVIEW: Final = "[Trimmed: "
_MAX_PREVIEW_LINE_CHARS: Final = 256


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
    # See hash_beginning.
    beginning: bytes = b""
    # If it carries results that can be told from the rest: SHA-256 of everything but their contents (the
    # frame), then of each content (see `fingerprint_result`), joined.
    split: bytes = b""


def hash_beginning(text: str) -> bytes:
    """A hash of how a text begins, by which a shorter form of it is known; empty if there is no text."""
    if text.startswith(_PREVIEW):
        line, end, preview = text[: _MAX_PREVIEW_LINE_CHARS + BEGINNING_CHARS].partition("]\n")
        text = preview if end else line
    start = text[:BEGINNING_CHARS].strip()
    encoded = start.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(encoded, digest_size=_BEGINNING_BYTES).digest() if start else b""


def fingerprint_result(text: str) -> bytes:
    """The fingerprint of a result that is only this text."""
    return fingerprint_fields([(b"text", text.encode("utf-8", "surrogatepass"))])


def fingerprint_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """SHA-256 over tagged, length-prefixed fields: different lists of fields never have the same encoding."""
    encoded = b"".join([b"%b:%d:%b" % (tag, len(value), value) for tag, value in fields])
    return hashlib.sha256(encoded).digest()
