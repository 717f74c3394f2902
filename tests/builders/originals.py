"""A search index over originals, and conversations whose messages are archived."""

import time
from collections.abc import Callable
from pathlib import Path

from gateway.originals.archive import Removals
from gateway.originals.file_locks import LOCK_SECONDS
from gateway.originals.index import OriginalsIndex
from gateway.originals.index_files import IndexBounds, IndexFiles
from gateway.store.blobs import Blobs


def make_search(
    removals: Removals,
    blobs: Blobs,
    directory: Path | None = None,
    *,
    keep_seconds: float = 60,
    total_bytes: int = 1 << 30,
    tenant_bytes: int = 1 << 30,
    clock: Callable[[], float] = time.time,
    lock_seconds: float = LOCK_SECONDS,
) -> OriginalsIndex:
    """directory: None for a private one, which `close` deletes."""
    files = IndexFiles(directory, IndexBounds(total_bytes, tenant_bytes), lock_seconds)
    return OriginalsIndex(removals, blobs, files, keep_seconds, clock)
