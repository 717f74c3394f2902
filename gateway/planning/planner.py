"""Gathers what a decision needs, asks for it, and is quick where nothing is to be decided.

Below the lines no message is ever tokenised: no tokenizer makes more tokens than bytes, and what the last
answer counted is known.
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.conversations.turn import Turn
from gateway.core.compaction.clamp import choose_output
from gateway.core.compaction.plan import Plan, Situation, TokenSizes
from gateway.core.history.head import Head
from gateway.core.history.message import Message
from gateway.core.history.pivot import (
    Batch,
    Pivot,
    find_eligible_batches,
    find_eligible_pivots,
    is_eligible,
    is_on_chain,
)
from gateway.core.history.view import View, make_view
from gateway.core.limits.thresholds import Thresholds
from gateway.core.sizing.calibrated_sizes import calibrate_sizes, estimate_view
from gateway.core.sizing.estimate import Estimate, Known, upper_bound_tokens
from gateway.core.sizing.payload import Payload, is_near_limit, with_payload
from gateway.planning.message_sizes import Sizer
from gateway.state.state import State

# Bytes of JSON to a token.
_ROUGH_BYTES_PER_TOKEN = 3.5
_NOTHING = View(None, {})


class Planner:
    def __init__(self, state: State, sizer: Sizer) -> None:
        self._state = state
        self._sizer = sizer

    def read_plan(self, turn: Turn) -> Plan | None:
        """The plan for a request that certainly stays below every line; None: it has to be measured."""
        in_force = self._in_force(turn)
        if in_force is None:
            return None
        limits = turn.limits
        if (limits.body_bytes or limits.images) and is_near_limit(limits, _bulk(turn)):
            return None
        pivot, batches = in_force
        lines, head = turn.thresholds, turn.own_head
        added = turn.received.conversation.messages.since(head.length if head is not None else 0)
        bound = None
        if head is not None or pivot is None:
            bound = upper_bound_tokens(added, head, len(turn.received.body.data))
        if lines is not None and (bound is None or not _is_certainly_below(turn, lines, bound)):
            return None
        sent = _guess_tokens(added, head, len(turn.received.body.data))
        saved = pivot.saved_tokens if pivot is not None else 0
        if batches:
            saved += sum(batch.saved_tokens for batch in batches)
        return Plan(
            pivot=pivot,
            batches=tuple(batches),
            new_batch=None,
            received=sent + saved,
            sent=sent,
            output=None,
        )

    async def gather(self, turn: Turn, *, may_compact: bool, may_digest: bool = False) -> Situation:
        """Everything that a decision looks at, read and measured."""
        state, owner = self._state, turn.owner
        conversation = turn.received.conversation
        calibration = await state.calibrations.load(owner, turn.meter)
        sizes = await self._sizer.measure(turn.received, turn.policy.estimator)
        # Last: what was made ready while the rest was read and measured is seen.
        pivots, batches = await self._load_eligible(turn)
        sticky = _find_sticky(turn, pivots)
        known = Known(head=None, head_view=_NOTHING, calibration=calibration)
        if turn.own_head is not None and _is_complete(turn, sticky, batches):
            past = state.heads.find_past(conversation, turn.scope)
            known = replace(known, head=turn.own_head, head_view=make_view(sticky, batches), past=past)
        token_sizes = TokenSizes(sizes, known, turn.limits)
        sizes, known, limits = with_payload(sizes, known, turn.limits, _bulk(turn))
        return Situation(
            owner=owner,
            conversation=conversation,
            sizes=sizes,
            policy=turn.policy,
            limits=limits,
            requested=turn.requested_tokens,
            minimum_reply=turn.received.body.envelope.least_tokens,
            growth=turn.growth,
            known=known,
            sticky=sticky,
            pivots=pivots,
            batches=batches,
            may_compact=may_compact and turn.policy.auto,
            may_digest=may_digest and turn.policy.auto,
            token_sizes=token_sizes if limits is not turn.limits else None,
        )

    async def measure(self, turn: Turn, plan: Plan) -> int:
        """True tokens of what a plan sends: where nothing was to be decided it holds a figure for show."""
        situation = await self.gather(turn, may_compact=False)
        found = situation.token_sizes or situation
        weights = calibrate_sizes(situation.conversation, found.sizes, found.known)
        return estimate_view(situation.conversation, weights, found.known, plan.view).tokens

    async def load_in_force(self, turn: Turn) -> tuple[Pivot | None, list[Batch]]:
        """What the nearest head used and what of it still applies, whatever the lines say."""
        found = self._in_force(turn)
        if found is not None:
            return found
        pivots, batches = await self._load_eligible(turn)
        return _find_sticky(turn, pivots), batches

    async def _load_eligible(self, turn: Turn) -> tuple[list[Pivot], list[Batch]]:
        stored, owner, head = self._state.pivots, turn.owner, turn.head
        conversation = turn.received.conversation
        batches = await stored.load_batches(owner, head.batches if head else ()) or []
        named = head.pivot if head else None
        pivots = await stored.load_on_chain(owner, conversation, turn.conversation_id, named)
        return find_eligible_pivots(conversation, pivots), find_eligible_batches(conversation, batches)

    def is_near(self, turn: Turn, total_tokens: int) -> bool:
        """Past the soft line: time to prepare something, unless the client is doing so itself."""
        return (
            turn.thresholds is not None and turn.purpose != "summary" and total_tokens > turn.thresholds.soft
        )

    def _in_force(self, turn: Turn) -> tuple[Pivot | None, list[Batch]] | None:
        """What the nearest head used, if all of it is at hand and still applies; None where it is not."""
        head = turn.head
        if head is None or (head.pivot is None and not head.batches):
            return None, []
        conversation = turn.received.conversation
        pivot = self._state.pivots.find(head.pivot)
        batches = self._state.pivots.find_batches(head.batches) if head.batches else []
        if batches is None or (head.pivot is not None and pivot is None):
            return None
        if pivot is not None and not is_eligible(conversation, pivot):
            return None
        if batches and not all(is_on_chain(conversation, batch.key, batch.length) for batch in batches):
            return None
        return pivot, batches


def _guess_tokens(added: Sequence[Message], head: Head | None, body_bytes: int) -> int:
    """For a figure that is shown and decides nothing."""
    if head is None:
        return int(body_bytes / _ROUGH_BYTES_PER_TOKEN)
    said_bytes = 0
    for message in added:
        if message.role != "assistant":
            said_bytes += message.size_bytes
    return head.total_tokens + int(said_bytes / _ROUGH_BYTES_PER_TOKEN)


def _find_sticky(turn: Turn, pivots: list[Pivot]) -> Pivot | None:
    head = turn.head
    return next((pivot for pivot in pivots if head and pivot.key == head.pivot), None)


def _bulk(turn: Turn) -> Payload:
    return Payload(len(turn.received.body.data), turn.received.conversation.messages)


def _is_complete(turn: Turn, sticky: Pivot | None, batches: list[Batch]) -> bool:
    """Is everything that the head used still there? Otherwise its usage says nothing about what is sent
    now.
    """
    head = turn.head
    if head is None:
        return False
    return (sticky.key if sticky else None) == head.pivot and len(batches) == len(head.batches)


def _is_certainly_below(turn: Turn, lines: Thresholds, bound_tokens: int) -> bool:
    """Below the soft line, with room for the reply that is asked for, and with nothing to prune."""
    if bound_tokens > lines.soft:
        return False
    if choose_output(turn.requested_tokens, lines.context, Estimate(bound_tokens, 0)) is not None:
        return False
    pruning = turn.policy.pruning
    if not (turn.policy.prune and pruning.eager):
        return True
    return len(turn.received.body.data) <= min(pruning.minimum_tokens, pruning.minimum_ratio * lines.hard)
