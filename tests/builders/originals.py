"""A search index over originals, and conversations whose messages are archived."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.conversations.turn import Turn
from gateway.originals.archive import KeptList, make_original
from gateway.originals.file_locks import LOCK_SECONDS
from gateway.originals.index import OriginalsIndex
from gateway.originals.index_files import IndexBounds, IndexFiles
from gateway.originals.origins import OriginFinder
from gateway.originals.removed import RemovedMessages
from gateway.store import Store


def make_search(
    store: Store,
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
    return OriginalsIndex(store, files, keep_seconds, clock)


async def add_originals(
    search: OriginalsIndex, turn: Turn, positions: Sequence[int], now: float | None = None
) -> None:
    """As if a list of these messages had been archived at this Unix time, or just now. The store lacks it."""
    received = turn.received
    removed = RemovedMessages(
        owner=received.owner,
        created_seconds=time.time() if now is None else now,
        kind="summary",
        originals=[make_original(received, OriginFinder(received), position) for position in positions],
        format=received.format.name,
    )
    search.note_kept(
        KeptList(
            conversation_id=turn.conversation_id,
            place=f"{time.time_ns():016x}",
            removed=removed,
            received=received,
            may_recall=True,
            weight_bytes=turn.weight_bytes,
        )
    )
    await search.finish()
