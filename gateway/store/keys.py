"""The tag of an owner: it stands in the keys of all of its records."""

import hashlib
from functools import lru_cache
from typing import Final

_TAG_DIGITS: Final = 32
_KEPT_TAGS: Final = 4_096


@lru_cache(_KEPT_TAGS)
def make_tag(owner: str) -> str:
    """The beginning of a SHA-256 of the owner: a key of the store shows no name of a tenant."""
    data = b"owner:" + owner.encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).hexdigest()[:_TAG_DIGITS]
