"""The records of a session's work, as they are stored: what it did, and apart from it the changes with their
diffs, which may be large.
"""

import zlib
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from gateway.core.session.work import FileChange, SessionWork

# Where a title comes from, the best first: the client named its session itself; the first summary; the first
# user message.
TitleSource = Literal["client", "summary", "message"]
_RANKS: Final[Sequence[TitleSource]] = ("client", "summary", "message")
# A damaged or hostile record must not fill the memory: changes are bounded when they are written.
_MOST_BYTES: Final = 16 << 20
_LEVEL: Final = 6


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """link: the chain after the first `length` messages, in hex; so much of the history has been read. ends:
    beginnings of the newest links, by which a request is known that is sent once more.

    proofs: see `titles.list_proofs`. work: without its changes.
    """

    owner: str
    id: str
    link: str
    length: int
    ends: tuple[str, ...] = ()
    updated_seconds: float
    proofs: tuple[str, ...] = ()
    title: str = ""
    title_from: TitleSource | None = None
    work: SessionWork


def with_title(session: StoredSession, title: str, source: TitleSource) -> StoredSession:
    """With this title, unless it has one from a better source, or from the first of several summaries. A
    client may name its session anew.
    """
    known = session.title_from
    is_better = known is None or source == "client" or _RANKS.index(source) < _RANKS.index(known)
    if not title or not is_better:
        return session
    return msgspec.structs.replace(session, title=title, title_from=source)


def pack_changes(changes: Sequence[FileChange]) -> bytes:
    return zlib.compress(msgspec.json.encode(changes), _LEVEL)


def unpack_changes(data: bytes) -> Sequence[FileChange]:
    """Nothing if it is damaged."""
    try:
        plain = zlib.decompressobj().decompress(data, _MOST_BYTES)
        return msgspec.json.decode(plain, type=tuple[FileChange, ...])
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
