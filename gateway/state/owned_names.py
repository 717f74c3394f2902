"""Which tenant may use the name of a response, or of an item of one, at an upstream with a key of its own.

With one key the upstream takes all tenants for one caller, and gives each of them what any of them stored.
The names stay known after a restart, as long as other state.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from gateway.lru import ENTRY_WEIGHT_BYTES
from gateway.state.cached import Cached, Storage
from gateway.store.interface import LATEST
from gateway.store.keys import make_tag

_NAME_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 300


class OwnedNames:
    def __init__(self, storage: Storage) -> None:
        self._memory = storage.memory
        self._names = Cached(storage, storage.records.owned, weigh=lambda _: _NAME_WEIGHT_BYTES)

    def record(self, owner: str, upstream: str, names: Iterable[str]) -> None:
        """The upstream gave these names in a response to this tenant."""
        for name in names:
            key = make_name_key(owner, upstream, name)
            if not self._names.find(key):
                self._names.save(owner, key, True)

    async def owns(self, owner: str, upstream: str, name: str) -> bool:
        """Asks the store for each name that memory does not have, again each time: another process may have
        been given it since. Raises Unknown.
        """
        key = make_name_key(owner, upstream, name)
        if self._names.find(key):
            if not self._names.is_stored(key):
                self._names.save(owner, key, True)
            return True
        purges = self._memory.purges
        found = await self._names.records.get(owner, key, wait=LATEST)
        if found is not None and not self._memory.was_purged(purges, make_tag(owner)):
            self._names.hold_stored(owner, key, True)
        return found is not None


def make_name_key(*parts: str) -> str:
    """Upstream and clients choose the names, so the key is a hash: of the tenant first, as every key is."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")
        state.update(b"%d:%s" % (len(encoded), encoded))
    return state.hexdigest()
