"""A list that several owners share, each up to a length of its own.

A conversation and its continuations store what they have in common once; copying it in each turn would touch
every object of a long history.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class SharedList(Sequence[T], Generic[T]):
    """The first items of a list that others may extend. Never changes; equal to any equal sequence."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[T]) -> None:
        """Owns `items` from now on."""
        self._items = items
        self._length = len(items)

    def grow(self, keep: int, added: Sequence[T]) -> "SharedList[T]":
        """The first `keep` items, then `added`, on the same list unless it was extended here before."""
        items = self._items
        if keep != len(items):
            items = items[:keep]
        items.extend(added)
        return SharedList(items)

    def detach(self) -> "SharedList[T]":
        """The same items on a list of its own, which a thread may grow while others grow this one."""
        return SharedList(self._items[: self._length])

    def continues(self, other: "SharedList[T]") -> bool:
        """Whether it is the same list and at least as long, which needs no comparison of items."""
        return self._items is other._items and self._length >= other._length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._items[start:stop] if step == 1 else self._items[: self._length][index]
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError(index)
        return self._items[index]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    def __reversed__(self) -> Iterator[T]:
        # By position: another thread may extend the list at any time.
        return map(self._items.__getitem__, range(self._length - 1, -1, -1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._items[: self._length] == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have no hash

    def __repr__(self) -> str:
        return f"SharedList({self._items[: self._length]!r})"
