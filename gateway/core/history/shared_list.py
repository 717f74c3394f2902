"""A list that grows at its end, seen by many, each up to its own length.

A conversation and its continuations hold what they share once: a copy for each turn would touch every object
of a long history.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class SharedList(Sequence[T], Generic[T]):
    """The first items of a list that others may have made longer. Never changes; equal to equal items.

    length, last: what `len` and `[-1]` say, for whoever is in a hurry; an empty one has no `last`.
    """

    __slots__ = ("_items", "last", "length")

    last: T

    def __init__(self, items: list[T]) -> None:
        """Takes the list over."""
        self._items = items
        self.length = len(items)
        if items:
            self.last = items[-1]

    def since(self, start: int) -> list[T]:
        """The items from a position on, which is not negative."""
        return self._items[start : self.length]

    def grow(self, keep: int, added: Sequence[T]) -> "SharedList[T]":
        """The first `keep` items and then those: on the same list, unless somebody went on from here
        before.
        """
        items = self._items
        if keep != len(items):
            items = items[:keep]
        items.extend(added)
        return SharedList(items)

    def continues(self, other: "SharedList[T]") -> bool:
        """Does it hold all of the other, known without a look at any item?"""
        return self._items is other._items and self.length >= other.length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        length = self.length
        # Nearly always: not a function is called for it.
        if index.__class__ is int and 0 <= index < length:
            return self._items[index]
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            return self._items[start:stop] if step == 1 else self._items[:length][index]
        if index < 0:
            index += length
        if not 0 <= index < length:
            raise IndexError(index)
        return self._items[index]

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self.length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._items[: self.length] == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Growing({self._items[: self.length]!r})"
