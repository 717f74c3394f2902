"""Writes that the server has not confirmed yet: the newest of each key, in the order of their arrival.

Reads of this process see them. While the server is away, this is the store: it is bounded, and the oldest
writes whose callers do not rely on them are dropped first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Memory beside key and value: dictionary slot, object headers, the write.
_OVERHEAD_BYTES = 300


@dataclass(frozen=True, eq=False)
class Write:
    """value: None deletes. if_absent: what the server has already is not replaced. is_promised: its caller
    relies on it.
    """

    key: str
    value: bytes | None
    expires_at: float = 0.0
    if_absent: bool = False
    is_promised: bool = False

    @property
    def cost_bytes(self) -> int:
        return len(self.key) + len(self.value or b"") + _OVERHEAD_BYTES

    def read(self, now: float) -> bytes | None:
        return self.value if self.expires_at > now else None


class Unsent:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._writes: OrderedDict[str, Write] = OrderedDict()
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def __len__(self) -> int:
        return len(self._writes)

    def __iter__(self) -> Iterator[Write]:
        """The oldest first, as they are now."""
        return iter(tuple(self._writes.values()))

    def find(self, key: str) -> Write | None:
        return self._writes.get(key)

    def put(self, write: Write) -> bool:
        """In place of an earlier write of the key. False if there is no room; deletes always find room."""
        self._drop(write.key)
        if write.value is not None and not self._make_room(write.cost_bytes):
            return False
        self._writes[write.key] = write
        self._used_bytes += write.cost_bytes
        return True

    def remove(self, write: Write) -> None:
        """Unless a later write of the key has replaced it."""
        if self._writes.get(write.key) is write:
            self._drop(write.key)

    def remove_all(self, is_meant: Callable[[str], bool]) -> set[str]:
        """Returns the keys of the records that are gone."""
        gone = [write for write in self if is_meant(write.key)]
        for write in gone:
            self._drop(write.key)
        return {write.key for write in gone if write.value is not None}

    def _make_room(self, cost_bytes: int) -> bool:
        room_bytes = self._max_bytes - cost_bytes
        if self._used_bytes > room_bytes:
            for write in self:
                if not write.is_promised:
                    self._drop(write.key)
                if self._used_bytes <= room_bytes:
                    break
        return self._used_bytes <= room_bytes

    def _drop(self, key: str) -> None:
        old = self._writes.pop(key, None)
        if old is not None:
            self._used_bytes -= old.cost_bytes
