"""A search over originals."""

import time
from collections.abc import Callable

from gateway.originals.archive import Removals
from gateway.originals.index import IndexBounds
from gateway.originals.index_folder import IndexFolder
from gateway.originals.search import OriginalsSearch
from gateway.store.blobs import Blobs


def make_search(removals: Removals, blobs: Blobs, clock: Callable[[], float] = time.time) -> OriginalsSearch:
    """Its file is in a private folder, which `close` deletes."""
    return OriginalsSearch(removals, blobs, IndexFolder(None), IndexBounds(1 << 30, 1 << 30), clock)
