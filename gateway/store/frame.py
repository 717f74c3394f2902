"""A record that can tell whether it is whole: magic, SHA-256 over key and payload, payload.

Knows nothing of where records live. A record copied under another key does not check out either.
"""

import hashlib
import hmac

# Kind and version of the frame in one; another layout gets another magic.
_MAGIC = b"GWR1"
_HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size


def render_frame(key: str, payload: bytes) -> bytes:
    return b"".join((_MAGIC, _digest(key, payload), payload))


def read_frame(key: str, record: bytes) -> bytes | None:
    """The payload, or None if anything about the record is not as it was written."""
    payload = record[_HEADER_BYTES:]
    expected = _MAGIC + _digest(key, payload)
    return payload if hmac.compare_digest(record[:_HEADER_BYTES], expected) else None


def _digest(key: str, payload: bytes) -> bytes:
    name = key.encode()
    # The length keeps key and payload apart: ("ab", "c") is not ("a", "bc").
    digest = hashlib.sha256(len(name).to_bytes(4, "big") + name)
    digest.update(payload)
    return digest.digest()
