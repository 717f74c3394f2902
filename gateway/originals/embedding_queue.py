"""Gives pieces of the index their vectors, in the background, some at a time.

Neither indexing nor a search waits for it. Where the upstream fails it stops, until the conversation is
indexed or searched again.
"""

import asyncio
import logging
from functools import partial
from typing import Final

from gateway.originals.embedder import Embedder
from gateway.originals.index_files import IndexDamaged
from gateway.originals.index_writer import Indexed, IndexWriter
from gateway.originals.search import SearchFailed
from gateway.originals.vectors import Unembedded, add_vectors, find_unembedded

log = logging.getLogger("gateway.search")

# Some 20,000 tokens: below what APIs take in one call.
_BATCH: Final = 64
_LONGEST_SECONDS: Final = 30.0
# Of conversations that wait. A further one is taken up when it is searched.
_MOST_WAITING: Final = 1_000


class EmbeddingQueue:
    def __init__(self, writer: IndexWriter, embedder: Embedder) -> None:
        self._writer = writer
        self._embedder = embedder
        # In the order in which they came.
        self._waiting: dict[Indexed, None] = {}
        self._task: asyncio.Task[None] | None = None

    def put(self, indexed: Indexed) -> None:
        """This conversation may have pieces without vectors."""
        if self._writer.is_closed or len(self._waiting) >= _MOST_WAITING:
            return
        self._waiting[indexed] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def finish(self) -> None:
        """Returns once nothing waits."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """What waits is given up."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while self._waiting:
                indexed = next(iter(self._waiting))
                del self._waiting[indexed]
                await self._fill(indexed)
        finally:
            self._task = None

    async def _fill(self, indexed: Indexed) -> None:
        """The newest pieces first."""
        below: int | None = None
        while not self._writer.is_closed:
            forgotten, name = self._writer.forgotten, self._embedder.name
            try:
                pieces = await self._writer.read(partial(self._find, indexed, below))
            except (IndexDamaged, SearchFailed):
                return
            if not pieces:
                return
            vectors = await self._embedder.embed([piece.text for piece in pieces], _LONGEST_SECONDS)
            if vectors is None:
                return
            add = partial(add_vectors, pieces=pieces, vectors=vectors, name=name)
            if not await self._writer.change(indexed, forgotten, add):
                return
            below = pieces[-1].piece

    def _find(self, indexed: Indexed, below: int | None) -> list[Unembedded]:
        with self._writer.files.reading(*indexed) as index:
            if index is None:
                return []
            return find_unembedded(index, self._embedder.name, _BATCH, below)
