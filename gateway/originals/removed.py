"""The records of what was removed from what is sent: lists of messages, none of which holds their text, and
the fingerprint that each message is kept under.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

RemovalKind = Literal["summary", "digest", "prune", "cut"]


class Origin(NamedTuple):
    """The call that a tool's result answers. path: the first that it names. Both are empty if unknown."""

    tool: str = ""
    path: str = ""


class Original(msgspec.Struct, frozen=True, array_like=True):
    """position: in the conversation after its leading block. digest: the fingerprint that the archive keeps
    the message under. origins: of each result in it, in their order.

    link: the chain at the message's end, in hex: conversations of one tenant that begin alike may have the
    same id. link_before: the chain at its beginning, before the client cleared old results if
    it has. Both are empty where a trimmed history does not tell.
    """

    position: int
    size_bytes: int
    digest: str
    origins: tuple[Origin, ...] = ()
    link: str = ""
    link_before: str = ""


class RemovedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that one compaction replaced or one batch marked. originals: as in the conversation.

    format: the name of the wire format. keep_seconds: for which they are kept from then on.
    """

    owner: str
    created_seconds: float
    kind: RemovalKind
    originals: Sequence[Original]
    format: str
    keep_seconds: float | None = None


def fingerprint(owner: str, raw: bytes) -> str:
    """SHA-256 of the tenant and the message as it was received, so tenants never share an original."""
    name = owner.encode()
    return hashlib.sha256(b"%d:%s" % (len(name), name) + raw).hexdigest()
