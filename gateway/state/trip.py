"""Look-ups that are made together: each asks for the first of some names of one kind that exists.

All go in one round trip, so that a request waits once for everything that it can name already.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from gateway.state.memory import Memory
from gateway.state.records import K, Records
from gateway.store.interface import LATEST, Found, Store, Unknown
from gateway.store.keys import make_tag

# So many names of a group are asked for at a time, in a few milliseconds. A conversation of 100,000 messages
# has as many, and looking all of them up at once would keep other conversations from the store for seconds.
_LOOKUP_NAMES: Final = 500


class _LookupGroup(NamedTuple):
    records: Records[Any]
    names: Iterator[str]
    note: Callable[[Found | None], None]


class Trip:
    """Used once, for one owner. wait: seconds of patience with a store that is late."""

    def __init__(self, store: Store, memory: Memory, owner: str, wait: float = LATEST) -> None:
        self._store = store
        self._memory = memory
        self._owner = owner
        self._wait = wait
        self._groups: list[_LookupGroup] = []
        self._done: list[Callable[[], None]] = []

    def ask(self, records: Records[K], names: Iterable[str], take: Callable[[str, K | None], object]) -> None:
        """Adds a group. take: is called with what was found, and its name, or with nothing."""

        def note(found: Found | None) -> None:
            take(*(records.parse(found) or ("", None)))

        self._groups.append(_LookupGroup(records, iter(names), note))

    def on_done(self, done: Callable[[], None]) -> None:
        """To be called only if the trip comes to its end."""
        self._done.append(done)

    async def run(self) -> None:
        """Asks nothing for groups without a name. A group of many names, of which the first do not exist,
        takes more than one round trip. Raises Unknown, also if something of the owner is deleted meanwhile.
        """
        tag, groups, purges = make_tag(self._owner), self._groups, self._memory.purges
        while groups:
            asked = [list(islice(group.names, _LOOKUP_NAMES)) for group in groups]
            both = zip(groups, asked, strict=True)
            lookups = [group.records.lookup(names) for group, names in both if names]
            found = await self._store.get(tag, lookups, wait=self._wait) if lookups else []
            if self._memory.was_purged(purges, tag):
                raise Unknown("it is being deleted")
            left, answers = [], iter(found)
            for group, names in zip(groups, asked, strict=True):
                stored = next(answers, None) if names else None
                if stored is None and names:
                    left.append(group)
                else:
                    group.note(stored)
            groups = left
        for done in self._done:
            done()
