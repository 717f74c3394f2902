"""A dictionary that forgets what has not been used for long, bounded in bytes and, if wanted, in number.

The order of use is kept to an eighth: who went to the end a short while ago stays where it is, for a move
touches its neighbours' memory, and most of that is cold.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


# Of the items: how many may be added before a use moves one to the end again.
_SLACK_SHIFT = 3


class _Kept(msgspec.Struct, Generic[V]):
    """moved: how many had been added when it went to the end."""

    value: V
    weight_bytes: int
    moved: int


class Lru(Generic[K, V]):
    """Values with what each weighs; `max_bytes` bounds the sum. Something heavier than all is not kept."""

    def __init__(self, max_bytes: int, max_items: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_items = max_items or math.inf
        self._items: OrderedDict[K, _Kept[V]] = OrderedDict()
        self._added = 0
        # An eighth of the items there were when the last one was added.
        self._slack = 0
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
        if self._added - found.moved > self._slack:
            found.moved = self._added
            self._items.move_to_end(key)
        return found.value

    def peek(self, key: K) -> V | None:
        """The value, as long unused as before."""
        found = self._items.get(key)
        return found.value if found is not None else None

    def values(self) -> list[V]:
        """Roughly in the order of their use."""
        return [kept.value for kept in self._items.values()]

    def put(self, key: K, value: V, weight_bytes: int) -> Sequence[V]:
        """Keeps the value and gives back what had to make room."""
        items = self._items
        kept = items.get(key)
        if weight_bytes > self._max_bytes:
            self.pop(key)
            return (value,)
        if kept is None:
            self._added += 1
            items[key] = _Kept(value, weight_bytes, self._added)
            self._slack = len(items) >> _SLACK_SHIFT
            self.size_bytes += weight_bytes
        else:
            self.size_bytes += weight_bytes - kept.weight_bytes
            kept.value, kept.weight_bytes = value, weight_bytes
            if self._added - kept.moved > self._slack:
                kept.moved = self._added
                items.move_to_end(key)
        if self.size_bytes <= self._max_bytes and len(items) <= self._max_items:
            return ()
        # What was just put is not what goes.
        items.move_to_end(key)
        return self._make_room()

    def pop(self, key: K) -> V | None:
        found = self._items.pop(key, None)
        if found is None:
            return None
        self.size_bytes -= found.weight_bytes
        return found.value

    def _make_room(self) -> list[V]:
        gone: list[V] = []
        while self.size_bytes > self._max_bytes or len(self._items) > self._max_items:
            _, kept = self._items.popitem(last=False)
            self.size_bytes -= kept.weight_bytes
            self.evictions += 1
            gone.append(kept.value)
        return gone
