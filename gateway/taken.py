"""Messages that were taken out of what is sent, together: folded by one compaction, or marked by one batch.

Names them, and holds none of their words.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

Kind = Literal["summary", "digest", "prune"]


class Original(msgspec.Struct, frozen=True, array_like=True):
    """position: as in a conversation, its leading block aside. digest: what the archive keeps it under."""

    position: int
    size_bytes: int
    digest: str


class Taken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """originals: in the order of the conversation."""

    version: Literal[1] = 1
    owner: str
    created_seconds: float
    kind: Kind
    originals: Sequence[Original]


_decoder: Final = msgspec.json.Decoder(Taken)


def render_taken(taken: Taken) -> bytes:
    return msgspec.json.encode(taken)


def parse_taken(data: bytes) -> Taken | None:
    """None for anything that is not whole."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
