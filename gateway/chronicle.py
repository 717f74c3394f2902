"""Keeps the compaction log of each conversation, over restarts. Its only writer.

An entry is written a moment later, in the background; a log that was not added to for `retention` is dropped.
"""

from typing import Final

from gateway.backlog import Backlog
from gateway.compaction_log import CompactionLog, Entry, parse_log, render_log
from gateway.conversations.turn import Turn
from gateway.lru import Lru
from gateway.store import Store

_MEMORY_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 600

_Noted = tuple[str, str, Entry]


class Chronicle:
    def __init__(self, store: Store, keep_seconds: float) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._logs: Lru[str, CompactionLog] = Lru(_MEMORY_BYTES)
        self._backlog = Backlog(self._write, _MEMORY_BYTES)

    def note(self, turn: Turn, entry: Entry) -> None:
        """A plain call."""
        self._backlog.put((turn.owner, turn.conversation, entry), _ENTRY_BYTES)

    async def read(self, conversation: str) -> CompactionLog | None:
        """With everything that was noted before."""
        await self._backlog.finish()
        return self._logs.get(conversation) or await self._load(conversation)

    async def finish(self) -> None:
        """Returns once everything that was noted is with the store."""
        await self._backlog.finish()

    async def _write(self, noted: _Noted) -> None:
        owner, conversation, entry = noted
        known = self._logs.get(conversation) or await self._load(conversation)
        if known is None or known.owner != owner:
            known = CompactionLog(owner=owner)
        log = known.with_entry(entry)
        self._logs.put(conversation, log, _ENTRY_BYTES * len(log.entries))
        self._store.write(f"log:{conversation}", render_log(log), keep_seconds=self._keep_seconds)

    async def _load(self, conversation: str) -> CompactionLog | None:
        data = await self._store.read(f"log:{conversation}")
        return parse_log(data) if data is not None else None
