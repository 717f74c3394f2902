"""What the span of a compaction says: the numbers of its entry in the compaction log."""

from typing import TYPE_CHECKING

from gateway.reporting.compaction_log import DONE, LogEntry
from gateway.traces import names

if TYPE_CHECKING:
    from gateway.traces.spans import Attributes


def describe_compaction(conversation_id: str, entry: LogEntry, riding_calls: int) -> "Attributes":
    known = {
        names.OPERATION: names.COMPACT,
        names.CONVERSATION: conversation_id,
        names.TRIGGER: entry.trigger,
        names.REASON: entry.reason or None,
        names.RESULT: entry.outcome,
        names.REQUEST_MODEL: names.shorten(entry.model) if entry.model is not None else None,
        names.COMPACTED: True if entry.outcome == DONE else None,
        names.ERROR: entry.outcome if entry.outcome != DONE else None,
        names.COVERS: entry.messages,
        names.CALLS: entry.calls,
        names.RIDING_CALLS: riding_calls,
        names.TOKENS_BEFORE: entry.pre_tokens,
        names.TOKENS_AFTER: entry.post_tokens,
    }
    return {name: value for name, value in known.items() if value is not None}
