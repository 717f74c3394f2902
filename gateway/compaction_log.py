"""What was compacted in one conversation, as operators read it: numbers and reasons, never a word of anybody.

Document 002: "track what was compacted in logs".
"""

from typing import Final, Literal

import msgspec

from gateway.events import Trigger
from gateway.taken import Kind

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
    kind: Kind
    trigger: Trigger
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
