"""The compaction log of each conversation, for operators: numbers and reasons, but no text.

It is kept in the store, so it survives a restart. docs/sources.md, 002: "track what was compacted in logs".
"""

from typing import Final, Literal

import msgspec

from gateway.conversations.turn import Turn
from gateway.core.compaction.request import CompactionTrigger
from gateway.lru import Lru
from gateway.reporting.originals import RemovalKind
from gateway.reporting.work_queue import WorkQueue
from gateway.store import Store

DONE: Final = "done"
# One entry is some 250 bytes. A conversation that is compacted more often keeps the newest.
_MAX_ENTRIES: Final = 100
_MEMORY_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 600


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One compaction, done or failed, or one batch of pruned messages. None: not measured, or not applicable.

    reason: why it was made. outcome: `done`, or the reason of the failure. messages: of a summary the
    position that it reaches, or should have reached; of a batch the number of its marks. summary_tokens: our
    own count.
    """

    at_seconds: float
    kind: RemovalKind
    trigger: CompactionTrigger
    reason: str
    outcome: str = DONE
    pre_tokens: int | None = None
    post_tokens: int | None = None
    messages: int = 0
    summary_tokens: int | None = None
    model: str | None = None
    calls: int = 0
    seconds: float = 0.0


class CompactionLog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """entries: the newest last."""

    version: Literal[1] = 1
    owner: str
    entries: tuple[LogEntry, ...] = ()

    def with_entry(self, entry: LogEntry) -> "CompactionLog":
        """Without the oldest entry if there are too many."""
        return msgspec.structs.replace(self, entries=(*self.entries, entry)[-_MAX_ENTRIES:])


_decoder: Final = msgspec.json.Decoder(CompactionLog)


def render_log(log: CompactionLog) -> bytes:
    return msgspec.json.encode(log)


def parse_log(data: bytes) -> CompactionLog | None:
    """None if the log is damaged or has another version."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class _Note(msgspec.Struct, frozen=True):
    owner: str
    conversation_id: str
    entry: LogEntry


class CompactionLogWriter:
    """The only writer of compaction logs."""

    def __init__(self, store: Store, keep_seconds: float) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._logs: Lru[str, CompactionLog] = Lru(_MEMORY_BYTES)
        self._queue = WorkQueue(self._write, _MEMORY_BYTES)

    def note(self, turn: Turn, entry: LogEntry) -> None:
        """Queues the entry."""
        self._queue.put(_Note(turn.owner, turn.conversation_id, entry), _ENTRY_BYTES)

    async def load(self, conversation_id: str) -> CompactionLog | None:
        """With every entry that was noted before."""
        await self._queue.finish()
        return await self._load(conversation_id)

    async def finish(self) -> None:
        """Returns once every noted entry is with the store."""
        await self._queue.finish()

    async def _write(self, note: _Note) -> None:
        log = await self._load(note.conversation_id)
        if log is None or log.owner != note.owner:
            log = CompactionLog(owner=note.owner)
        log = log.with_entry(note.entry)
        self._logs.put(note.conversation_id, log, _ENTRY_BYTES * len(log.entries))
        key = f"log:{note.conversation_id}"
        self._store.write(key, render_log(log), keep_seconds=self._keep_seconds)

    async def _load(self, conversation_id: str) -> CompactionLog | None:
        known = self._logs.get(conversation_id)
        if known is not None:
            return known
        data = await self._store.read(f"log:{conversation_id}")
        return parse_log(data) if data is not None else None
