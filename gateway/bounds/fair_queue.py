"""What waits for its turn: first come first served for each owner, and owners take turns."""

from collections import OrderedDict
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """No item may wait twice. owner: the id of a tenant."""

    def __init__(self) -> None:
        # The owner whose turn is next comes first. Its items are in a dictionary, to drop any at once.
        self._owners: OrderedDict[str, dict[T, None]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def count(self, owner: str) -> int:
        return len(self._owners.get(owner, ()))

    def put(self, owner: str, item: T) -> None:
        self._owners.setdefault(owner, {})[item] = None
        self._size += 1

    def take(self, excluded: Collection[str] = ()) -> T | None:
        """The next item of an owner that is not excluded. None if there is none."""
        owner = next((owner for owner in self._owners if owner not in excluded), None)
        if owner is None:
            return None
        item = next(iter(self._owners[owner]))
        self._owners.move_to_end(owner)
        self.drop(owner, item)
        return item

    def drop(self, owner: str, item: T) -> bool:
        """Forgets an item. False if it does not wait here."""
        items = self._owners.get(owner, {})
        if item not in items:
            return False
        del items[item]
        self._size -= 1
        if not items:
            del self._owners[owner]
        return True
