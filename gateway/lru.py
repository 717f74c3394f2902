"""A dictionary that forgets what was not used for longest, bounded in bytes and, if wanted, in number."""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Values with what each weighs; `max_bytes` bounds the sum. Something heavier than all is not kept."""

    def __init__(self, max_bytes: int, max_items: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_items = max_items or math.inf
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size_bytes = 0
        # How many had to make room so far: whoever remembers that something is absent must know.
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def get(self, key: K) -> V | None:
        """The value, now the most recently used one."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def peek(self, key: K) -> V | None:
        """The value, as long unused as before."""
        found = self._items.get(key)
        return found[0] if found is not None else None

    def values(self) -> list[V]:
        """The one that was not used for longest first."""
        return [value for value, _ in self._items.values()]

    def put(self, key: K, value: V, weight_bytes: int) -> list[V]:
        """Keeps the value and gives back what had to make room."""
        items = self._items
        before = items.pop(key, None)
        if before is not None:
            self.size_bytes -= before[1]
        if weight_bytes > self._max_bytes:
            return [value]
        items[key] = (value, weight_bytes)
        self.size_bytes += weight_bytes
        gone: list[V] = []
        while self.size_bytes > self._max_bytes or len(items) > self._max_items:
            _, (old, weight) = items.popitem(last=False)
            self.size_bytes -= weight
            gone.append(old)
            self.evictions += 1
        return gone

    def pop(self, key: K) -> V | None:
        found = self._items.pop(key, None)
        if found is None:
            return None
        self.size_bytes -= found[1]
        return found[0]
