"""Encrypted reasoning and signatures: opaque to others, and deterministic.

Any changed byte is noticed, without storing what was handed out.
"""

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass

_KEY = b"the toy's own key"
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Sealed:
    """follower: the mark of the item that this reasoning led to."""

    text: str
    follower: str = ""


def seal(content: Sealed) -> str:
    payload = json.dumps([content.text, content.follower]).encode()
    return base64.b64encode(_digest(payload) + payload).decode()


def unseal(sealed: str) -> Sealed | None:
    """None: not ours, or changed on the way."""
    try:
        data = base64.b64decode(sealed, validate=True)
    except (binascii.Error, ValueError):
        return None
    digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if digest != _digest(payload):
        return None
    text, follower = json.loads(payload)
    return Sealed(text, follower)


def sign(text: str) -> str:
    return base64.b64encode(_digest(text.encode("utf-8", "surrogatepass"))).decode()


def _digest(payload: bytes) -> bytes:
    return hashlib.sha256(_KEY + payload).digest()[:_DIGEST_BYTES]
