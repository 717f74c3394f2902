"""The diffs of a conversation, one value for each message that changed files.

They lie with the originals, whose bounds and retention they share.
"""

import asyncio
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from gateway.core.session.work import FileChange
from gateway.store.blobs import Blobs

# Of one answer, about. What is behind it is left out, and counted.
MOST_CHARS: Final = 2_000_000
_READ_TOGETHER: Final = 64
# A damaged or hostile record must not fill the memory: a message has at most so much.
_MOST_BYTES: Final = 16 << 20
_LEVEL: Final = 6


class FoundChanges(NamedTuple):
    """left_off: messages whose changes are not among these."""

    changes: list[FileChange]
    left_off: int


_decoder: Final = msgspec.json.Decoder(tuple[FileChange, ...])


def pack_changes(changes: Iterable[FileChange]) -> dict[int, bytes]:
    """Values by position. changes: in the order of their positions."""
    packed = {}
    for position, group in groupby(changes, key=lambda change: change.position):
        packed[position] = zlib.compress(msgspec.json.encode(tuple(group)), _LEVEL)
    return packed


def unpack_changes(data: bytes) -> Sequence[FileChange]:
    """Nothing if it is damaged."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, _MOST_BYTES)
        return _decoder.decode(plain)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()


class DiffStore:
    """tag: of the owner. positions: of the messages. All raise StoreError."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    async def write(
        self, tag: str, conversation_id: str, packed: Mapping[int, bytes], keep_seconds: float
    ) -> None:
        values = {_name(position): data for position, data in packed.items()}
        await self._blobs.put(tag, conversation_id, values, keep_seconds=keep_seconds)

    async def delete(self, tag: str, conversation_id: str) -> None:
        """Of a conversation that was deleted while they were written: the originals go, too."""
        await self._blobs.delete(tag, [conversation_id])

    async def load(self, tag: str, conversation_id: str, positions: Sequence[int]) -> FoundChanges:
        """In the order of the positions. What is absent or damaged is left out."""
        changes, room = list[FileChange](), MOST_CHARS
        for start in range(0, len(positions), _READ_TOGETHER):
            if room <= 0:
                return FoundChanges(changes, len(positions) - start)
            names = [_name(position) for position in positions[start : start + _READ_TOGETHER]]
            found = await self._blobs.get(tag, conversation_id, names)
            values = [found[name] for name in names if name in found]
            more = await asyncio.to_thread(_unpack_all, values)
            changes += more
            room -= sum(len(change.diff) for change in more)
        return FoundChanges(changes, 0)


def _name(position: int) -> str:
    return f"diff.{position}"


def _unpack_all(values: Iterable[bytes]) -> list[FileChange]:
    return [change for each in values for change in unpack_changes(each)]
