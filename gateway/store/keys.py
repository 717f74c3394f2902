"""The keys of records: `kind:{tag}name`, where the tag stands for the tenant that owns the record.

The braces are a hash tag (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/): all
records of a tenant lie in one slot of a cluster, and one prefix or pattern finds them.
"""

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


def make_key(tag: str, kind: str, name: str) -> str:
    return f"{kind}:{{{tag}}}{name}"


def find_tag(key: str) -> str | None:
    """None for a key that an earlier version wrote, without a tag."""
    tag = key.partition(":{")[2][:_TAG_DIGITS]
    return tag if key.partition(":{")[2][_TAG_DIGITS : _TAG_DIGITS + 1] == "}" else None
