"""A cache that drops the least recently used values, bounded in bytes and, if wanted, in number."""

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

# An entry of its own: a place in the ordered dictionary, the pair of value and weight, and the weight.
ENTRY_WEIGHT_BYTES = 200

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Values and the weight of each; `max_bytes` bounds the sum.

    A value heavier than `max_bytes` is not kept. A weight includes its key and `ENTRY_WEIGHT_BYTES`: clients
    choose many of the names that are kept.
    """

    def __init__(self, max_bytes: int, max_items: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_items = max_items or math.inf
        # The least recently used entry comes first. Each holds its value and its weight in bytes.
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def get(self, key: K) -> V | None:
        """The value, now the most recently used one."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def peek(self, key: K) -> V | None:
        """The value, without counting this as a use."""
        entry = self._entries.get(key)
        return entry[0] if entry is not None else None

    def values(self) -> list[V]:
        """All values, the least recently used one first."""
        return [value for value, _ in self._entries.values()]

    def put(self, key: K, value: V, weight_bytes: int) -> Sequence[V]:
        """Keeps the value as the most recently used one. Returns the values that were dropped to make room.

        A value that is too heavy to be kept is returned. The value that its key had before is gone, too.
        """
        if weight_bytes > self._max_bytes:
            self.pop(key)
            return (value,)
        entry = self._entries.get(key)
        self._entries[key] = value, weight_bytes
        self._entries.move_to_end(key)
        self.size_bytes += weight_bytes - (entry[1] if entry is not None else 0)
        if self.size_bytes <= self._max_bytes and len(self._entries) <= self._max_items:
            return ()
        return self._make_room()

    def pop(self, key: K) -> V | None:
        """Takes the value out of the cache."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        value, weight_bytes = entry
        self.size_bytes -= weight_bytes
        return value

    def clear(self) -> None:
        self._entries.clear()
        self.size_bytes = 0

    def drop_where(self, is_dropped: Callable[[V], bool]) -> None:
        """Takes out all such values. Looks at each, so it is for what happens seldom."""
        for key in [key for key, (value, _) in self._entries.items() if is_dropped(value)]:
            self.pop(key)

    def _make_room(self) -> list[V]:
        dropped: list[V] = []
        while self.size_bytes > self._max_bytes or len(self._entries) > self._max_items:
            _, (value, weight_bytes) = self._entries.popitem(last=False)
            self.size_bytes -= weight_bytes
            dropped.append(value)
        return dropped


def weigh_texts(*texts: str | bytes | None) -> int:
    """The memory that texts take. A character beyond ASCII takes up to four bytes."""
    return sum(map(sys.getsizeof, texts))
