"""A dictionary that forgets what has not been used for long, bounded in bytes and, if wanted, in number.

By second chance (Corbató 1968): a use leaves a mark and moves nothing, for a list in the order of use would
touch its neighbours' memory at every look. Who has a mark when room is needed loses it and goes to the end.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Kept(Generic[V]):
    __slots__ = ("is_used", "value", "weight_bytes")

    def __init__(self, value: V, weight_bytes: int) -> None:
        self.value = value
        self.weight_bytes = weight_bytes
        self.is_used = False


class Lru(Generic[K, V]):
    """Values with what each weighs; `max_bytes` bounds the sum. Something heavier than all is not kept."""

    def __init__(self, max_bytes: int, max_items: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_items = max_items or math.inf
        self._items: OrderedDict[K, _Kept[V]] = OrderedDict()
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
        """The value, which now was used."""
        found = self._items.get(key)
        if found is None:
            return None
        found.is_used = True
        return found.value

    def peek(self, key: K) -> V | None:
        """The value, as long unused as before."""
        found = self._items.get(key)
        return found.value if found is not None else None

    def values(self) -> list[V]:
        """In no order."""
        return [kept.value for kept in self._items.values()]

    def put(self, key: K, value: V, weight_bytes: int) -> Sequence[V]:
        """Keeps the value and gives back what had to make room."""
        kept = self._items.get(key)
        if kept is not None:
            size_bytes = self.size_bytes - kept.weight_bytes + weight_bytes
            if size_bytes <= self._max_bytes:
                kept.value, kept.weight_bytes, kept.is_used = value, weight_bytes, True
                self.size_bytes = size_bytes
                return ()
            self.pop(key)
        if weight_bytes > self._max_bytes:
            return (value,)
        gone = self._make_room(weight_bytes)
        self._items[key] = _Kept(value, weight_bytes)
        self.size_bytes += weight_bytes
        return gone

    def pop(self, key: K) -> V | None:
        found = self._items.pop(key, None)
        if found is None:
            return None
        self.size_bytes -= found.weight_bytes
        return found.value

    def _make_room(self, weight_bytes: int) -> Sequence[V]:
        """For one more of this weight."""
        items = self._items
        gone: list[V] = []
        while self.size_bytes + weight_bytes > self._max_bytes or len(items) >= self._max_items:
            key, kept = items.popitem(last=False)
            if kept.is_used:
                kept.is_used = False
                items[key] = kept
                continue
            self.size_bytes -= kept.weight_bytes
            self.evictions += 1
            gone.append(kept.value)
        return gone
