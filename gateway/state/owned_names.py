"""Which tenant may use the name of a response, or of an item of one, at an upstream with a key of its own.

With one key the upstream takes all tenants for one caller, and gives each of them what any of them stored.
The names stay known after a restart, as long as other state.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.state.memory import Storage, Whose
from gateway.store.interface import LATEST
from gateway.store.keys import make_tag

_NAME_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 300


class _Known(NamedTuple):
    tag: str
    # In which the store was last known to have it.
    generation: int


class OwnedNames:
    def __init__(self, storage: Storage) -> None:
        self._memory = storage.memory
        self._records = storage.records.owned
        self._known: Lru[str, _Known] = storage.memory.shelf(
            lambda known: (Whose(known.tag),), storage.max_bytes
        )

    def record(self, owner: str, upstream: str, names: Iterable[str]) -> None:
        """The upstream gave these names in a response to this tenant."""
        for name in names:
            key = make_name_key(owner, upstream, name)
            if self._known.get(key) is None:
                self._save(owner, key)

    async def owns(self, owner: str, upstream: str, name: str) -> bool:
        """Asks the store for each name that memory does not have, again each time: another process may have
        been given it since. Raises Unknown.
        """
        key = make_name_key(owner, upstream, name)
        known = self._known.get(key)
        if known is not None:
            if known.generation != self._memory.generation:
                self._save(owner, key)
            return True
        purges = self._memory.purges
        found = await self._records.get(owner, (key,), wait=LATEST)
        if found is not None and not self._memory.was_purged(purges, make_tag(owner)):
            self._hold(owner, key)
        return found is not None

    def _save(self, owner: str, key: str) -> None:
        self._records.put(owner, key, True)
        self._hold(owner, key)

    def _hold(self, owner: str, key: str) -> None:
        self._known.put(key, _Known(make_tag(owner), self._memory.generation), _NAME_WEIGHT_BYTES)


def make_name_key(*parts: str) -> str:
    """Upstream and clients choose the names, so the key is a hash: of the tenant first, as every key is."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")
        state.update(b"%d:%s" % (len(encoded), encoded))
    return state.hexdigest()
