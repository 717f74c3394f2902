"""The head of an answered request: what is known at its end, and what it was sent with."""

from typing import Final, NamedTuple

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.head import Head, count_dropped, smooth_growth
from gateway.core.history.recall import Recall, find_eligible_recalls
from gateway.core.sizing.usage import Usage
from gateway.state import State

# So many replies to one request, other than the newest, are known by what they recalled.
_MAX_REPLIES: Final = 3


class Prefix(NamedTuple):
    """Keys of what a request was sent with."""

    pivot: str | None
    batches: tuple[str, ...]
    # With those that its reply brought.
    recalls: tuple[str, ...]


def name_prefix(state: State, turn: Turn, plan: Plan) -> Prefix:
    batches = tuple([batch.key for batch in plan.batches])
    return Prefix(plan.pivot.key if plan.pivot else None, batches, _name_recalls(state, turn, plan))


def _name_recalls(state: State, turn: Turn, plan: Plan) -> tuple[str, ...]:
    """The keys of those in use, of those that wait for a request with tools, and of those of other replies to
    this very request: the client may go on with any of them.
    """
    names = tuple([recall.key for recall in (*plan.recalls, *_list_waiting(state, turn, plan))])
    conversation = turn.received.conversation
    before = state.heads.find_at(conversation.key.hex(), turn.scope)
    if before is None or not before.recalls:
        return names
    others = [state.recalls.find(key) for key in before.recalls if key not in names]
    length = len(conversation.messages)
    own = [other.key for other in others if other is not None and other.position == length]
    return (*names, *own[:_MAX_REPLIES])


def _list_waiting(state: State, turn: Turn, plan: Plan) -> list[Recall]:
    """A request without tools is sent without the calls of the gateway's, and the next one may have tools."""
    if turn.head is None or turn.received.body.envelope.has_tools:
        return []
    known = [recall for key in turn.head.recalls if (recall := state.recalls.find(key)) is not None]
    covers = plan.pivot.covers if plan.pivot is not None else 0
    waiting = [recall for recall in known if recall.kind == "tool"]
    return find_eligible_recalls(turn.received.conversation, waiting, covers)


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
