"""What upstreams have said about their own models.

The same upstream may show different lists to different keys, so a list is kept for its viewer. Equal lists
are held in memory once. Sends no requests.
"""

import hashlib
from collections.abc import Collection, Mapping
from typing import Final

from gateway.core.limits.model_limits import Limits
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.settings import UpstreamSettings

# A list of 400 models takes some 150 KB; callers of one upstream mostly see the same one.
_LISTS_BYTES: Final = 8 << 20
# A name, a place in a dictionary and three numbers.
_MODEL_WEIGHT_BYTES: Final = 350
_VIEWS_BYTES: Final = 1 << 20
_VIEW_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 350
_ALL_TENANTS: Final = ""


def choose_viewer(upstream: UpstreamSettings, owner: str) -> str:
    """A list that a key was shown which all tenants share holds for all of them, any other for one tenant."""
    return owner if upstream.api_key is None or upstream.key_owner is not None else _ALL_TENANTS


class ModelLists:
    def __init__(self) -> None:
        self._lists: Lru[bytes, Mapping[str, Limits]] = Lru(_LISTS_BYTES)
        # The fingerprint of the list, by viewer and upstream.
        self._views: Lru[tuple[str, str], bytes] = Lru(_VIEWS_BYTES)

    def keep(self, viewer: str, upstream: str, listed: Mapping[str, Limits]) -> bool:
        """True if no equal list was held before."""
        fingerprint = hashlib.sha256(repr(sorted(listed.items(), key=_by_name)).encode()).digest()
        self._views.put((viewer, upstream), fingerprint, _VIEW_WEIGHT_BYTES)
        is_new = fingerprint not in self._lists
        if is_new:
            weight = sum(_MODEL_WEIGHT_BYTES + weigh_texts(name) for name in listed)
            self._lists.put(fingerprint, listed, weight + _VIEW_WEIGHT_BYTES)
        return is_new

    def has(self, viewer: str, upstream: str) -> bool:
        """Whether the upstream has been asked, even without success."""
        return (viewer, upstream) in self._views

    def find(self, viewer: str, upstream: str, model: str) -> Limits | None:
        """None if it was not asked yet, or its list does not name this model."""
        fingerprint = self._views.get((viewer, upstream))
        listed = self._lists.get(fingerprint) if fingerprint is not None else None
        return listed.get(model) if listed is not None else None

    def of_upstreams(self, upstreams: Collection[str]) -> "ModelLists":
        """A copy with the lists of these upstreams only."""
        copy = ModelLists()
        for viewer, upstream in self._views:
            fingerprint = self._views.peek((viewer, upstream))
            listed = self._lists.peek(fingerprint) if fingerprint is not None else None
            if listed is not None and upstream in upstreams:
                copy.keep(viewer, upstream, listed)
        return copy


def _by_name(item: tuple[str, Limits]) -> str:
    return item[0]
