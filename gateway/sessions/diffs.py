"""The diffs of a conversation, one record for each message that changed files.

They lie with the originals, whose bounds and retention they share.
"""

import asyncio
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.core.session.work import FileChange
from gateway.store import Store
from gateway.store.keys import make_key, make_tag

# It sorts before the other kinds of this store: scans for those do not pass it.
_KIND: Final = "diff"
# Of one answer, about. What is behind it is left out, and counted.
MOST_CHARS: Final = 2_000_000
_READ_TOGETHER: Final = 64
# A damaged or hostile record must not fill the memory: a message has at most so much.
_MOST_BYTES: Final = 16 << 20
_LEVEL: Final = 6


class StoredChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one message changed."""

    version: Literal[1] = 1
    owner: str
    changes: tuple[FileChange, ...]


class FoundChanges(NamedTuple):
    """left_off: messages whose changes are not among these."""

    changes: list[FileChange]
    left_off: int


_decoder: Final = msgspec.json.Decoder(StoredChanges)


def pack_changes(owner: str, changes: Iterable[FileChange]) -> dict[int, bytes]:
    """Records by position. changes: in the order of their positions."""
    packed = {}
    for position, group in groupby(changes, key=lambda change: change.position):
        stored = StoredChanges(owner=owner, changes=tuple(group))
        packed[position] = zlib.compress(msgspec.json.encode(stored), _LEVEL)
    return packed


def unpack_changes(data: bytes) -> StoredChanges | None:
    """None if it is damaged or has another version."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, _MOST_BYTES)
        return _decoder.decode(plain)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class DiffStore:
    """tag: of the owner. positions: of the messages."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(
        self, tag: str, conversation_id: str, packed: Mapping[int, bytes], keep_seconds: float
    ) -> None:
        """Waits for the commit, so that the store never queues more than one turn's. Raises StoreError."""
        *others, last = [
            (name_diff(tag, conversation_id, position), data) for position, data in packed.items()
        ]
        for key, data in others:
            self._store.write(key, data, keep_seconds=keep_seconds)
        await self._store.write_durably(*last, keep_seconds=keep_seconds)

    async def load(self, tag: str, conversation_id: str, positions: Sequence[int]) -> FoundChanges:
        """In the order of the positions. What is absent, damaged or of another owner is left out."""
        changes, room = list[FileChange](), MOST_CHARS
        for start in range(0, len(positions), _READ_TOGETHER):
            if room <= 0:
                return FoundChanges(changes, len(positions) - start)
            some = positions[start : start + _READ_TOGETHER]
            names = [(name_diff(tag, conversation_id, position),) for position in some]
            found = await self._store.read_groups(names)
            records = [each[1] for each in found if each is not None]
            more = await asyncio.to_thread(_unpack_all, tag, records)
            changes += more
            room -= sum(len(change.diff) for change in more)
        return FoundChanges(changes, 0)

    def delete(self, tag: str, conversation_id: str, positions: Iterable[int]) -> None:
        for position in positions:
            self._store.delete(name_diff(tag, conversation_id, position))


def name_diff(tag: str, conversation_id: str, position: int) -> str:
    """The key of the store that the diffs of a message are under."""
    return make_key(tag, _KIND, f"{conversation_id}:{position}")


def _unpack_all(tag: str, records: Iterable[bytes]) -> list[FileChange]:
    stored = [each for each in map(unpack_changes, records) if each is not None]
    return [change for each in stored if make_tag(each.owner) == tag for change in each.changes]
