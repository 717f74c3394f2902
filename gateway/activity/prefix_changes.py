"""Why the array of a request is not that of the request before with something added at its end."""

from gateway.activity.entry import Entry
from gateway.activity.series import PrefixChange
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.head import is_comparable


def find_change(entry: Entry, turn: Turn, plan: Plan) -> PrefixChange | None:
    """Against the request before of the same conversation."""
    return find_plan_change(entry, plan) or ("history" if _has_other_history(entry, turn) else None)


def find_plan_change(entry: Entry, plan: Plan) -> PrefixChange | None:
    pivot, before = plan.pivot, entry.activity.pivot
    if pivot is not entry.pivot or entry.pivot is None:
        if (pivot.key if pivot is not None else None) != (before.key if before is not None else None):
            return "compaction"
        if pivot is not None and entry.summary_hash not in (None, hash(pivot.summary)):
            return "edit"
    if (plan.batches or entry.activity.batches) and [batch.key for batch in plan.batches] != [
        *entry.activity.batches
    ]:
        return "pruning"
    return None


def _has_other_history(entry: Entry, turn: Turn) -> bool:
    """Whether the client changed what comes before its new messages: the tools, the model, the leading block,
    or which messages it still sends.
    """
    if not entry.activity.scope:
        return False
    head = turn.head
    return turn.scope != entry.activity.scope or (
        head is not None and not is_comparable(head, turn.received.conversation)
    )
