"""Look-ups that are made together: each is a group of keys, of which the store gives the first that exists.

All groups go in one round trip, so that a request waits once for everything that it can name already.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from gateway.store import Store

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

# The store looks up so many keys of a group at a time, in a few milliseconds. A conversation of 100,000
# messages has as many keys, and looking all of them up at once would keep other conversations from the store
# for seconds.
_LOOKUP_KEYS: Final = 500

# A key and what is stored under it.
Stored = tuple[str, bytes]


class Records(Protocol[R_co]):
    """Names the records of one kind, and reads them."""

    def name(self, owner: str, key: str) -> str: ...

    def read_stored(self, owner: str, stored: Stored) -> tuple[str, R_co] | None: ...


class Finding(Generic[R]):
    """What was found for one group; None until the trip has ended, and if there is nothing."""

    def __init__(self) -> None:
        self.record: R | None = None


class Trip:
    """Used once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: list[tuple[Iterator[str], Callable[[Stored | None], None]]] = []

    def ask(
        self,
        records: Records[R],
        owner: str,
        keys: Iterable[str],
        take: Callable[[str, R | None], None] = lambda key, record: None,
    ) -> Finding[R]:
        """Adds a group. take: is called with what was found, and its key, or with nothing."""
        answer = Finding[R]()

        def note(stored: Stored | None) -> None:
            found = records.read_stored(owner, stored) if stored is not None else None
            key, answer.record = found if found is not None else ("", None)
            take(key, answer.record)

        self._groups.append(((records.name(owner, key) for key in keys), note))
        return answer

    async def run(self) -> None:
        """Asks nothing for groups without a key. A group of many keys, of which the first do not exist, takes
        more than one round trip.
        """
        groups = self._groups
        while groups:
            asked = [list(islice(names, _LOOKUP_KEYS)) for names, _ in groups]
            found = await self._store.read_groups([keys for keys in asked if keys]) if any(asked) else []
            left, answers = [], iter(found)
            for group, keys in zip(groups, asked, strict=True):
                stored = next(answers, None) if keys else None
                if stored is None and keys:
                    left.append(group)
                else:
                    group[1](stored)
            groups = left
