"""What upstreams say of their own models, as far as they have been asked.

Kept for whoever saw it: the same upstream may show different lists to different keys. Equal lists are held in
memory once. Asks nobody.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from gateway.core.limits.model_limits import Limits
from gateway.lru import Lru
from gateway.settings import UpstreamSettings

# A list of 400 models takes some 150 KB; callers of one upstream mostly see the same one.
_LISTS_BYTES: Final = 8 << 20
# What a name, a place in a dictionary and three numbers take.
_MODEL_WEIGHT_BYTES: Final = 350
_VIEWS_BYTES: Final = 1 << 20
_VIEW_WEIGHT_BYTES: Final = 300
_EVERYBODY: Final = ""


def choose_viewer(upstream: UpstreamSettings, owner: str) -> str:
    """Whose eyes see the list: everybody's where the gateway asks with its own key, else one tenant's."""
    return owner if upstream.api_key is None else _EVERYBODY


class ModelLists:
    def __init__(self) -> None:
        self._lists: Lru[bytes, Mapping[str, Limits]] = Lru(_LISTS_BYTES)
        # (viewer, upstream) and the digest of what was seen.
        self._views: Lru[tuple[str, str], bytes] = Lru(_VIEWS_BYTES)

    def keep(self, viewer: str, upstream: str, listed: Mapping[str, Limits]) -> bool:
        """Was it a list that is not held yet?"""
        digest = hashlib.sha256(repr(sorted(listed.items(), key=_by_name)).encode()).digest()
        self._views.put((viewer, upstream), digest, _VIEW_WEIGHT_BYTES)
        is_new = digest not in self._lists
        if is_new:
            weight = sum(_MODEL_WEIGHT_BYTES + len(name) for name in listed)
            self._lists.put(digest, listed, weight + _VIEW_WEIGHT_BYTES)
        return is_new

    def has(self, viewer: str, upstream: str) -> bool:
        """Has it been asked, whatever it said?"""
        return (viewer, upstream) in self._views

    def read(self, viewer: str, upstream: str, model: str) -> Limits | None:
        """None: not asked yet, or it says nothing of this model."""
        digest = self._views.get((viewer, upstream))
        listed = self._lists.get(digest) if digest is not None else None
        return listed.get(model) if listed is not None else None


def _by_name(item: tuple[str, Limits]) -> str:
    return item[0]
