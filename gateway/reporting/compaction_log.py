"""The compaction log of each conversation, for operators: numbers and reasons, but no text.

It is kept in the store, so it survives a restart. docs/sources.md, 002: "track what was compacted in logs".
Each entry is a record of its own, because several processes may write entries of one conversation at once.
"""

import secrets
from collections.abc import Sequence
from itertools import count
from typing import Final, Literal

import msgspec

from gateway.bounds.work_queue import WorkQueue
from gateway.conversations.turn import Turn
from gateway.core.compaction.request import CompactionTrigger
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.originals.removed import RemovalKind
from gateway.store import Store
from gateway.store.keys import make_key, make_tag

DONE: Final = "done"
# One entry is some 250 bytes. A conversation that is compacted more often keeps the newest.
_MAX_ENTRIES: Final = 100
# After so many entries of a conversation a process looks for those that are beyond the bound.
_TRIM_ENTRIES: Final = 20
_MEMORY_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 600
_COUNT_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 100
# It sorts behind all other kinds of the store, so that the entries are found soon: see `Store.scan`.
_KIND: Final = "report"
# What versions until November 2026 wrote: all entries in one record.
_OLD_KIND: Final = "log"


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One compaction, done or failed, or one batch of pruned messages. None: not measured, or not applicable.

    reason: why it was made, empty for pruned messages (see `find_reason`). outcome: `done`, or the reason of
    the failure. messages: of a summary the position that it reaches, or should have reached; of a batch the
    number of its marks. summary_tokens: our own count.
    """

    at_seconds: float
    kind: RemovalKind | Literal["edit"]
    trigger: CompactionTrigger
    reason: str = ""
    outcome: str = DONE
    pre_tokens: int | None = None
    post_tokens: int | None = None
    messages: int = 0
    summary_tokens: int | None = None
    model: str | None = None
    calls: int = 0
    seconds: float = 0.0


class CompactionLog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """entries: the newest last. In the store there is a log of one entry for each compaction."""

    version: Literal[1] = 1
    owner: str
    entries: tuple[LogEntry, ...] = ()


_decoder: Final = msgspec.json.Decoder(CompactionLog)


def render_log(log: CompactionLog) -> bytes:
    return msgspec.json.encode(log)


def parse_log(data: bytes) -> CompactionLog | None:
    """None if the log is damaged or has another version."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def join_logs(tag: str, found: Sequence[bytes]) -> CompactionLog | None:
    """The newest entries of all logs, which come in the order of their time; None if there are none.

    Damaged ones, and those of an owner with another tag, are left out.
    """
    logs = [log for log in map(parse_log, found) if log is not None and make_tag(log.owner) == tag]
    if not logs:
        return None
    entries = [entry for log in logs for entry in log.entries]
    return CompactionLog(owner=logs[0].owner, entries=tuple(entries[-_MAX_ENTRIES:]))


class _Note(msgspec.Struct, frozen=True):
    owner: str
    conversation_id: str
    entry: LogEntry


class CompactionLogWriter:
    """The only writer of compaction logs."""

    def __init__(self, store: Store, keep_seconds: float) -> None:
        self._store = store
        self._keep_seconds = keep_seconds
        # Entries of this process by conversation, since it last looked for those beyond the bound.
        self._written: Lru[str, int] = Lru(_MEMORY_BYTES)
        self._queue = WorkQueue(self._write, _MEMORY_BYTES)
        # Tells entries apart that several processes note at the same time, and keeps those of one in order.
        self._name = secrets.token_hex(4)
        self._numbers = count()

    @property
    def waiting_bytes(self) -> int:
        """What is queued."""
        return self._queue.waiting_bytes

    def note(self, turn: Turn, entry: LogEntry) -> None:
        """Queues the entry."""
        self._queue.put(_Note(turn.owner, turn.conversation_id, entry), _ENTRY_BYTES)

    async def load(self, tag: str, conversation_id: str) -> CompactionLog | None:
        """With every entry that this process noted before. tag: of the owner, see `store.keys`."""
        await self._queue.finish()
        old = await self._store.read(make_key(tag, _OLD_KIND, conversation_id))
        found = await self._store.scan(_make_prefix(tag, conversation_id))
        return join_logs(tag, [*([old] if old is not None else []), *(data for _, data in found)])

    async def find_tag(self, conversation_id: str) -> str | None:
        """The tag of the owner of a conversation that has a log, whichever process has written it."""
        await self._queue.finish()
        tag = await self._store.read(make_place_key(conversation_id))
        return tag.decode(errors="replace") if tag is not None else None

    async def finish(self) -> None:
        """Returns once every noted entry is with the store."""
        await self._queue.finish()

    async def _write(self, note: _Note) -> None:
        tag, conversation_id = make_tag(note.owner), note.conversation_id
        log = CompactionLog(owner=note.owner, entries=(note.entry,))
        place = make_place_key(conversation_id)
        self._store.write(place, tag.encode(), keep_seconds=self._keep_seconds)
        time = f"{int(note.entry.at_seconds * 1_000_000):014x}.{next(self._numbers):08x}.{self._name}"
        key = _make_prefix(tag, conversation_id) + time
        self._store.write(key, render_log(log), keep_seconds=self._keep_seconds)
        await self._trim(tag, conversation_id)

    async def _trim(self, tag: str, conversation_id: str) -> None:
        """Deletes the oldest entries, those of other processes included, but does not look each time."""
        written = (self._written.peek(conversation_id) or 0) + 1
        if written >= _TRIM_ENTRIES:
            written = 0
            found = await self._store.scan(_make_prefix(tag, conversation_id))
            for key, _ in found[:-_MAX_ENTRIES]:
                self._store.delete(key)
        self._written.put(conversation_id, written, _COUNT_WEIGHT_BYTES)


def make_place_key(conversation_id: str) -> str:
    """Operators name a conversation alone. This record says under which tag its log lies."""
    return make_key(find_place_tag(conversation_id), "place", conversation_id)


async def load_places(store: Store, tag: str) -> list[str]:
    """The keys of the records that point to the logs of this tag. They have tags of their own."""
    kinds = (_KIND, _OLD_KIND)
    found = [each for kind in kinds for each in await store.scan(make_key(tag, kind, ""))]
    names = {key.partition("}")[2].partition(":")[0] for key, _ in found}
    return sorted(map(make_place_key, names))


async def find_log(store: Store, tag: str, conversation_id: str) -> list[str]:
    """The names of the entries of one conversation. What points to them has another tag, see
    `make_place_key`.
    """
    found = await store.scan(_make_prefix(tag, conversation_id))
    old = make_key(tag, _OLD_KIND, conversation_id)
    is_old = await store.read(old) is not None
    return [*(name for name, _ in found), *([old] if is_old else [])]


def find_place_tag(conversation_id: str) -> str:
    """The tag of the record that points to a log."""
    return make_tag(f"conversation:{conversation_id}")


def _make_prefix(tag: str, conversation_id: str) -> str:
    return make_key(tag, _KIND, f"{conversation_id}:")
