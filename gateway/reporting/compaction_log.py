"""The compaction log of each conversation, for operators: numbers and reasons, but no text.

It is kept in the store, so it survives a restart. docs/sources.md, 002: "track what was compacted in logs".
Each entry is a record of its own, because several processes may write entries of one conversation at once.
"""

import secrets
from collections.abc import Sequence
from itertools import count
from typing import Final, Literal

import msgspec

from gateway.bounds.background import BackgroundTasks
from gateway.conversations.turn import Turn
from gateway.core.compaction.request import CompactionTrigger
from gateway.originals.removed import RemovalKind
from gateway.state.records import Kind, Records, TaggedRecord
from gateway.store.interface import Store, StoreError
from gateway.store.keys import make_tag

DONE: Final = "done"
# One entry is some 250 bytes. A conversation that is compacted more often keeps the newest.
_MAX_ENTRIES: Final = 100
# With one of so many entries a process looks for those of its conversation that are beyond the bound.
_TRIM_ENTRIES: Final = 20
_KIND: Final = "report"


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
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


class CompactionLogWriter:
    """The only writer of compaction logs."""

    def __init__(self, store: Store, keep_seconds: float) -> None:
        self._store = store
        self._records = Records(store, Kind(name=_KIND, type=LogEntry, keep_seconds=keep_seconds))
        # Tells entries apart that several processes note at the same time, and keeps those of one in order.
        self._name = secrets.token_hex(4)
        self._numbers = count()
        self._trimming = BackgroundTasks("trimming a compaction log")

    def note(self, turn: Turn, entry: LogEntry) -> None:
        """Queues the entry."""
        number = next(self._numbers)
        time = f"{int(entry.at_seconds * 1_000_000):014x}.{number:08x}.{self._name}"
        self._records.put(turn.owner, f"{turn.conversation_id}:{time}", entry, group=turn.conversation_id)
        if secrets.randbelow(_TRIM_ENTRIES) == 0:
            self._trimming.spawn(self._trim(turn.owner, turn.conversation_id))

    async def load(self, tag: str, conversation_id: str) -> Sequence[LogEntry]:
        """The newest last, with every entry that this process noted before. tag: of the owner, see
        `store.keys`. Raises StoreError.
        """
        found = await self._list(tag, conversation_id)
        return [each.record for each in found[-_MAX_ENTRIES:]]

    async def find_tag(self, conversation_id: str) -> str | None:
        """The tag of the owner of a conversation that has a log, whichever process has written it.

        Looks at all logs, for what happens seldom. Raises StoreError.
        """
        listed = await self._store.list(_KIND)
        return next((each.key.tag for each in listed if each.group == conversation_id), None)

    async def finish(self) -> None:
        """Returns once every noted entry is with the store."""
        await self._trimming.finish()

    async def _list(self, tag: str, conversation_id: str) -> list[TaggedRecord[LogEntry]]:
        listed = await self._store.list(_KIND, tag, conversation_id)
        return sorted(self._records.parse_listed(listed), key=lambda each: each.name)

    async def _trim(self, owner: str, conversation_id: str) -> None:
        """Deletes the oldest entries, those of other processes included."""
        try:
            found = await self._list(make_tag(owner), conversation_id)
        except StoreError:
            # The next one looks again.
            return
        for each in found[:-_MAX_ENTRIES]:
            self._records.drop(owner, each.name)
