"""A search index over originals."""

import time
from collections.abc import Callable

from gateway.originals.archive import Removals
from gateway.originals.index import OriginalsIndex
from gateway.originals.index_files import IndexBounds, IndexFiles
from gateway.store.blobs import Blobs


def make_search(removals: Removals, blobs: Blobs, clock: Callable[[], float] = time.time) -> OriginalsIndex:
    """Its files are in a private directory, which `close` deletes."""
    files = IndexFiles(None, IndexBounds(1 << 30, 1 << 30))
    return OriginalsIndex(removals, blobs, files, 60.0, clock)
