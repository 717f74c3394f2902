"""What was compacted in one conversation, as operators read it: numbers and reasons, never a word of anybody.

Document 002: "track what was compacted in logs".
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
# One entry is some 250 bytes; a conversation that is compacted more often remembers the newest.
_MOST_ENTRIES: Final = 100


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One compaction, whatever came of it, or one prune batch.

    reason: what called for it. outcome: `done`, or why not. messages: up to where the summary reaches, or
    should have; of a batch how many it marks. summary_tokens: by our own count. None: not measured, or there
    is no such thing.
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
    entries: tuple[Entry, ...] = ()

    def with_entry(self, entry: Entry) -> "CompactionLog":
        """The oldest make room."""
        return msgspec.structs.replace(self, entries=(*self.entries, entry)[-_MOST_ENTRIES:])


_decoder: Final = msgspec.json.Decoder(CompactionLog)


def render_log(log: CompactionLog) -> bytes:
    return msgspec.json.encode(log)


def parse_log(data: bytes) -> CompactionLog | None:
    """None for anything that is not whole."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


# JOINED: Keeps the compaction log of each conversation, over restarts. Its only writer.

_MEMORY_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 600

_Noted = tuple[str, str, Entry]


class CompactionLogWriter:
    def __init__(self, store: Store, keep_seconds: float) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        self._logs: Lru[str, CompactionLog] = Lru(_MEMORY_BYTES)
        self._backlog = WorkQueue(self._write, _MEMORY_BYTES)

    def note(self, turn: Turn, entry: Entry) -> None:
        """A plain call."""
        self._backlog.put((turn.owner, turn.conversation_id, entry), _ENTRY_BYTES)

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
