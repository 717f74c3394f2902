"""A stored record, which shows whether it is whole: magic, SHA-256 over key and payload, payload.

A record that is copied to another key does not check out either.
"""

import hashlib
import hmac

# Kind and version of the layout in one; another layout gets another magic.
_MAGIC = b"GWR1"
_HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size


def check_key(key: str) -> None:
    """A key is printable ASCII, so that it sorts, prefixes and logs the same everywhere."""
    if not (key and key.isascii() and key.isprintable()):
        raise ValueError("a store key is printable ASCII and not empty")


def render_record(key: str, payload: bytes) -> bytes:
    return b"".join((_MAGIC, _hash(key, payload), payload))


def parse_record(key: str, record: bytes) -> bytes | None:
    """The payload, or None if anything about the record differs from what was written."""
    payload = record[_HEADER_BYTES:]
    expected = _MAGIC + _hash(key, payload)
    return payload if hmac.compare_digest(record[:_HEADER_BYTES], expected) else None


def _hash(key: str, payload: bytes) -> bytes:
    name = key.encode()
    # The length keeps key and payload apart: ("ab", "c") is not ("a", "bc").
    state = hashlib.sha256(len(name).to_bytes(4, "big") + name)
    state.update(payload)
    return state.digest()
