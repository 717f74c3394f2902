"""Sends a turn by its plan.

The body is rewritten, usage is requested and the gateway's tool offered, and headers of the response show
what was done.
"""

from functools import partial
from typing import Final

from gateway.compaction.compactor import Compactor
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.plan_fingerprint import fingerprint_plan
from gateway.http.reply import Reply
from gateway.outgoing.call_maker import Additions, CallMaker
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.outcomes import OutcomeRecorder
from gateway.pipeline.plan_headers import PlanHeaders
from gateway.pipeline.recall_loop import RecallLoop
from gateway.pipeline.refusal_probe import HeldResponse, ProbeMode
from gateway.pipeline.relay import Relay

# Tokenizers differ by a factor of 1.7: a request of half the soft threshold may already be refused.
_NEAR: Final = 0.5


class Sender:
    def __init__(
        self,
        headers: PlanHeaders,
        calls: CallMaker,
        relay: Relay,
        compactor: Compactor,
        outcomes: OutcomeRecorder,
        recalls: RecallLoop,
    ) -> None:
        self._headers = headers
        self._calls = calls
        self._relay = relay
        self._compactor = compactor
        self._outcomes = outcomes
        self._recalls = recalls

    async def send(
        self,
        turn: Turn,
        plan: Plan,
        client: Reply,
        probe: ProbeMode | None = None,
        additions: Additions | None = None,
    ) -> HeldResponse | None:
        """Relays the response, unless upstream calls the request too large: then returns it unsent.

        probe: how much of the response is held back to find that out; None leaves it to the plan. additions:
        as chosen for this plan, None if they are not yet.
        """
        await self._compactor.secure(turn, plan)
        if additions is None:
            additions = self.choose_additions(turn, plan)
        make_call = partial(self._calls.make, turn, plan)
        if turn.note_sent is not None:
            turn.note_sent(fingerprint_plan(plan), turn.conversation_id)
        note = client.note
        note.plan, note.received, note.sent = plan.name, plan.received, plan.sent
        exchange = Exchange(
            call=await make_call(additions),
            headers=self._headers.make(turn, plan),
            on_outcome=partial(self._outcomes.record, turn, plan, note),
            additions=additions,
            make_with=make_call if additions else None,
            probe=probe or _choose_probe(turn, plan),
            on_event=turn.on_event,
        )
        if "tool" in additions:
            forwarded = await self._recalls.run(turn, plan, exchange, client)
        else:
            forwarded = await self._relay.forward(exchange, client)
        self._calls.note_refused(turn, forwarded.refused)
        return forwarded.held

    async def give_back(self, turn: Turn, plan: Plan, refusal: HeldResponse, client: Reply) -> None:
        """Relays a refusal as it came."""
        await self._relay.send_held(refusal, self._headers.make(turn, plan), client)

    def choose_additions(self, turn: Turn, plan: Plan) -> Additions:
        """See CallMaker."""
        return self._calls.choose_additions(turn, plan)

    def count_copied_bytes(self, turn: Turn, plan: Plan, additions: Additions) -> int:
        """See CallMaker."""
        return self._calls.count_copied_bytes(turn, plan, additions)

    async def count_bytes(self, turn: Turn, plan: Plan) -> int:
        """See CallMaker."""
        return await self._calls.count_bytes(turn, plan)


def _choose_probe(turn: Turn, plan: Plan) -> ProbeMode:
    """A successful response is held back, up to its first content, only if the request may be too large."""
    if not turn.policy.auto:
        return "none"
    if turn.thresholds is None or plan.sent >= _NEAR * turn.thresholds.soft:
        return "start"
    return "errors"
