"""The head of an answered request: what is known at its end, and what it was sent with."""

from typing import NamedTuple

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.head import Head, count_dropped, smooth_growth
from gateway.core.sizing.usage import Usage


class Prefix(NamedTuple):
    """Keys of what a request was sent with."""

    pivot: str | None
    batches: tuple[str, ...]
    recalls: tuple[str, ...]


def name_prefix(plan: Plan) -> Prefix:
    batches = tuple([batch.key for batch in plan.batches])
    recalls = tuple([recall.key for recall in plan.recalls])
    return Prefix(plan.pivot.key if plan.pivot else None, batches, recalls)


def make_head(turn: Turn, prefix: Prefix, plan: Plan, usage: Usage | None) -> Head:
    """usage: None if it is not known, or not yet."""
    conversation = turn.received.conversation
    total = usage.total if usage is not None else 0
    covers = plan.pivot.covers if plan.pivot is not None else 0
    return Head(
        owner=turn.owner,
        key=conversation.key.hex(),
        length=len(conversation.messages),
        scope=turn.scope,
        tools=turn.received.body.envelope.tools.hex(),
        prompt_tokens=usage.prompt_tokens if usage is not None else 0,
        output_tokens=usage.output_tokens if usage is not None else 0,
        growth_tokens=smooth_growth(turn.own_head, total) if usage is not None else turn.growth,
        pivot=prefix.pivot,
        batches=prefix.batches,
        conversation=turn.conversation_id,
        parent=turn.parent_id,
        covers=covers,
        dropped=count_dropped(conversation, covers),
        pivot_version=plan.pivot.version if plan.pivot is not None else 1,
        recalls=prefix.recalls,
        ledger=turn.head.ledger if turn.head is not None else None,
        session=turn.session,
    )
