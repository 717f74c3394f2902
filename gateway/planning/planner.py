"""Gathers what a decision needs, and plans a request at once if nothing has to be decided.

Far below the thresholds no message is tokenized: no tokenizer makes more tokens than bytes, and upstream
counted everything up to the last response.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, Final, ParamSpec, TypeVar

from gateway.bounds.lanes import Lanes
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan, choose_output, describe_cut
from gateway.core.compaction.situation import Situation
from gateway.core.economy import COLD_SECONDS
from gateway.core.history.conversation import count_replies
from gateway.core.history.head import Head
from gateway.core.history.message import Message
from gateway.core.history.pivot import (
    Batch,
    Pivot,
    Recall,
    find_eligible_batches,
    find_eligible_pivots,
    find_eligible_recalls,
    is_eligible,
    place_pivot,
)
from gateway.core.history.view import View, make_view
from gateway.core.limits.thresholds import Thresholds
from gateway.core.sizing.estimate import (
    Calibration,
    Estimate,
    Known,
    MeasuredRequest,
    Payload,
    is_near_limit,
    upper_bound_tokens,
    with_payload,
)
from gateway.planning.message_sizes import Sizer
from gateway.state import State

# A token takes about this many bytes of JSON.
_ROUGH_BYTES_PER_TOKEN: Final = 3.5
# A decision takes 1 to 3 µs for each message.
_INLINE_MESSAGES: Final = 3_000
# Few messages of a long conversation are smaller.
_LEAST_MESSAGE_BYTES: Final = 100

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Active:
    """What the nearest head was sent with, as far as it is stored and still applies."""

    pivot: Pivot | None
    batches: Sequence[Batch]
    recalls: Sequence[Recall]
    # False if something is missing, or was edited. Then the head's usage says nothing about what would be
    # sent now.
    is_complete: bool

    def as_plan(self, sent: int = 0) -> Plan:
        """That the same is sent again. sent: tokens of it, where they are known."""
        saved = self.pivot.saved_tokens if self.pivot is not None else 0
        for batch in self.batches:
            saved += batch.saved_tokens
        for recall in self.recalls:
            saved -= recall.tokens
        return Plan(
            pivot=self.pivot,
            batches=tuple(self.batches),
            new_batch=None,
            received=max(0, sent + saved),
            sent=sent,
            output=None,
            warning=describe_cut(self.pivot, self.batches),
            cut=sum(batch.saved_tokens for batch in self.batches if batch.is_cut),
            recalls=tuple(self.recalls),
        )


_NOTHING: Final = Active(None, (), (), is_complete=True)


class Planner:
    """clock: seconds since 1970."""

    def __init__(
        self, state: State, sizer: Sizer, lanes: Lanes, clock: Callable[[], float] = time.time
    ) -> None:
        self.clock = clock
        self._state = state
        self._sizer = sizer
        self._lanes = lanes

    async def plan_unmeasured(self, turn: Turn) -> Plan | None:
        """The plan for a request that is certainly below its thresholds; None if it has to be measured."""
        active = await self.load_active(turn)
        if not active.is_complete or self._may_go_early(turn, active):
            return None
        limits = turn.limits
        if (limits.body_bytes or limits.images) and is_near_limit(limits, _payload(turn)):
            return None
        thresholds, head = turn.thresholds, turn.own_head
        added = turn.received.conversation.messages[head.length if head is not None else 0 :]
        body_bytes = len(turn.received.body.data)
        bound = None
        # Without usage the whole body is the bound, but only if no pivot adds texts to it.
        if head is not None or active.pivot is None:
            bound = upper_bound_tokens(added, head, body_bytes)
        if thresholds is not None and (bound is None or not _is_certainly_below(turn, thresholds, bound)):
            return None
        return active.as_plan(_guess_tokens(added, head, body_bytes))

    async def gather(self, turn: Turn, *, may_compact: bool, may_digest: bool = False) -> Situation:
        """Loads and measures everything that a decision looks at."""
        state, owner = self._state, turn.owner
        conversation = turn.received.conversation
        calibration = await state.calibrations.load(owner, turn.meter)
        sizes = await self._sizer.measure(turn.received, turn.policy.estimator)
        active = await self.load_active(turn)
        # Pivots come last, so that one that was made while the rest was loaded and measured is seen.
        pivots = find_eligible_pivots(conversation, state.pivots.list_on_chain(conversation))
        in_tokens = MeasuredRequest(sizes, self._find_known(turn, active, calibration), turn.limits)
        measured = with_payload(in_tokens, _payload(turn))
        return Situation(
            owner=owner,
            conversation=conversation,
            sizes=measured.sizes,
            policy=turn.policy,
            limits=measured.limits,
            requested=turn.requested_tokens,
            minimum_reply=turn.received.body.envelope.minimum_reply_tokens,
            growth=turn.growth,
            known=measured.known,
            sticky=next((pivot for pivot in pivots if active.pivot and pivot.key == active.pivot.key), None),
            pivots=pivots,
            batches=active.batches,
            recalls=active.recalls,
            may_compact=may_compact and turn.policy.compaction.auto,
            may_digest=may_digest and turn.policy.compaction.auto,
            in_tokens=in_tokens if measured is not in_tokens else None,
            refused=turn.refused,
            rates=turn.rates,
            ledger=turn.head.ledger if turn.head is not None else None,
            is_cold=self._is_cold(turn),
        )

    def _may_go_early(self, turn: Turn, active: Active) -> bool:
        """Whether another prefix may be sent although nothing is near the thresholds."""
        if turn.thresholds is None:
            return False
        ledger = turn.head.ledger if turn.head is not None else None
        if ledger is not None and ledger.is_due:
            covers = active.pivot.covers if active.pivot is not None else 0
            if self._state.pivots.has_newer(turn.received.conversation, covers):
                return True
        return self._is_cold(turn)

    def _is_cold(self, turn: Turn) -> bool:
        """Whether it is known that no provider has the prefix in its cache. Never if the policy looks at
        sizes only.
        """
        ledger = turn.head.ledger if turn.head is not None else None
        if not turn.policy.economy or ledger is None or turn.head is None or not ledger.answered_seconds:
            return False
        if self.clock() - ledger.answered_seconds < COLD_SECONDS:
            return False
        # After a restart the head may be an older one, of which more replies are known.
        return count_replies(turn.received.conversation.messages[turn.head.length :]) <= 1

    async def choose(
        self,
        decide: Callable[Concatenate[Situation, P], T],
        situation: Situation,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """What a decision makes of this situation. For a long conversation it is made in a thread."""
        messages = len(situation.conversation.messages)
        if messages <= _INLINE_MESSAGES:
            return decide(situation, *args, **kwargs)
        size_bytes = messages * _LEAST_MESSAGE_BYTES
        return await self._lanes.run(situation.owner, size_bytes, decide, situation, *args, **kwargs)

    def _find_known(self, turn: Turn, active: Active, calibration: Calibration) -> Known:
        if turn.own_head is None or not active.is_complete:
            return Known(head=None, head_view=View(None, {}), calibration=calibration)
        return Known(
            head=turn.own_head,
            head_view=make_view(active.pivot, active.batches, active.recalls),
            calibration=calibration,
            past=self._state.heads.find_past(turn.received.conversation, turn.scope),
        )

    async def count_sent(self, turn: Turn, plan: Plan) -> int:
        """True tokens of what a plan sends. An unmeasured plan holds only a rough figure."""
        situation = await self.gather(turn, may_compact=False)
        return situation.estimate_tokens(plan.view).tokens

    async def load_active(self, turn: Turn) -> Active:
        """Reads the store only for what is not in memory."""
        head = turn.head
        if head is None or (head.pivot is None and not head.batches and not head.recalls):
            return _NOTHING
        stored, conversation = self._state.pivots, turn.received.conversation
        batches = find_eligible_batches(
            conversation, await stored.load_batches(turn.owner, head.batches) or []
        )
        pivot = await stored.load(turn.owner, head.pivot) if head.pivot is not None else None
        if pivot is not None:
            pivot = place_pivot(pivot, conversation) if is_eligible(conversation, pivot) else None
        is_complete = (pivot is not None) == (head.pivot is not None) and len(batches) == len(head.batches)
        # A person may have edited the summary since.
        is_same = pivot is None or pivot.version == head.pivot_version
        recalls: Sequence[Recall] = ()
        if head.recalls:
            # Those that have a place in this request.
            known = await self._state.pivots.load_recalls(turn.owner, head.recalls)
            recalls = find_eligible_recalls(conversation, known, pivot.covers if pivot is not None else 0)
        return Active(pivot, batches, recalls, is_complete and is_same)

    def is_past_soft(self, turn: Turn, total_tokens: int) -> bool:
        """Whether it is time to prepare a compaction. Never while the client compacts its history itself."""
        return (
            turn.thresholds is not None and turn.purpose != "summary" and total_tokens > turn.thresholds.soft
        )


def _guess_tokens(added: Sequence[Message], head: Head | None, body_bytes: int) -> int:
    """For a response header; nothing is decided by it."""
    if head is None:
        return int(body_bytes / _ROUGH_BYTES_PER_TOKEN)
    new_bytes = 0
    for message in added:
        if message.role != "assistant":
            new_bytes += message.size_bytes
    return head.total_tokens + int(new_bytes / _ROUGH_BYTES_PER_TOKEN)


def _payload(turn: Turn) -> Payload:
    return Payload(len(turn.received.body.data), turn.received.conversation.messages)


def _is_certainly_below(turn: Turn, thresholds: Thresholds, bound_tokens: int) -> bool:
    """Below the soft threshold, with room for the reply that is asked for, and with nothing to prune."""
    if bound_tokens > thresholds.soft:
        return False
    requested = turn.requested_tokens
    if requested and choose_output(requested, thresholds.context, Estimate(bound_tokens, 0)) is not None:
        return False
    pruning = turn.policy.pruning
    if not (turn.policy.compaction.prune and pruning.eager):
        return True
    return len(turn.received.body.data) <= min(
        pruning.minimum_tokens, pruning.minimum_ratio * thresholds.hard
    )
