"""Which tenant may use the name of a response, or of an item of one, at an upstream with a key of its own.

With one key the upstream takes all tenants for one caller, and gives each of them what any of them stored.
The names stay known after a restart, as long as other state.
"""

import hashlib
from collections.abc import Iterable

from gateway.state.record_cache import RecordCache, Storage
from gateway.state.records import OwnedName


class OwnedNames:
    def __init__(self, storage: Storage) -> None:
        self._names = RecordCache(OwnedName, "owned", storage)

    def record(self, owner: str, upstream: str, names: Iterable[str]) -> None:
        """The upstream gave these names in a response to this tenant."""
        for name in names:
            key = make_name_key(owner, upstream, name)
            if self._names.find(key) is None:
                self._names.save(owner, key, OwnedName(owner=owner, key=key))

    async def owns(self, owner: str, upstream: str, name: str) -> bool:
        """Asks the store for each name that memory does not have, again each time: another process may have
        been given it since.
        """
        key = make_name_key(owner, upstream, name)
        known = await self._names.load(owner, key)
        if known is not None and not self._names.is_stored(key):
            self._names.save(owner, key, known)
        return known is not None

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory."""
        self._names.forget(tag)


def make_name_key(*parts: str) -> str:
    """Upstream and clients choose the names, so the key is a hash: of the tenant first, as every key is."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogateescape")
        state.update(b"%d:%s" % (len(encoded), encoded))
    return state.hexdigest()
