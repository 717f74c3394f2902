"""Sends a turn by its plan.

The body is rewritten, usage is requested and the gateway's tool offered, and headers of the response show
what was done.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from gateway.activity.book import ActivityBook
from gateway.activity.economics import render_economics
from gateway.compaction.compactor import Compactor
from gateway.conversations.branches import Branches, SettingsTime
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan, PlanName
from gateway.core.compaction.plan_fingerprint import fingerprint_plan
from gateway.headers import (
    X_GATEWAY_CONVERSATION,
    X_GATEWAY_ECONOMICS,
    X_GATEWAY_MAX_TOKENS,
    X_GATEWAY_PLAN,
    X_GATEWAY_TOKENS,
    X_GATEWAY_WARNING,
)
from gateway.http.answered import Answered
from gateway.http.reply import Reply
from gateway.pipeline.exchange import Exchange, Outcome
from gateway.pipeline.refusal_probe import HeldResponse, ProbeMode
from gateway.pipeline.relay import Relay
from gateway.planning.learning import Learner
from gateway.planning.rewrite import CallMaker
from gateway.reporting.reporter import Reporter
from gateway.wire.reading import is_window_exceeded

# Tokenizers differ by a factor of 1.7: a request of half the soft threshold may already be refused.
_NEAR: Final = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    # Whether responses say what was done with their requests.
    shows_headers: bool
    # What conversations cost, for clients that ask.
    activity: ActivityBook
    calls: CallMaker
    relay: Relay
    compactor: Compactor
    branches: Branches
    # Of the settings that the sender belongs to.
    time: SettingsTime
    learner: Learner
    reporter: Reporter

    async def send(
        self, turn: Turn, plan: Plan, client: Reply, probe: ProbeMode | None = None
    ) -> HeldResponse | None:
        """Relays the response, unless upstream calls the request too large: then returns it unsent.

        probe: how much of the response is held back to find that out; None leaves it to the plan.
        """
        await self.compactor.secure(turn, plan)
        adds_usage = self.calls.adds_usage(turn)
        make_call = partial(self.calls.make, turn, plan)
        if turn.note_sent is not None:
            turn.note_sent(fingerprint_plan(plan), turn.conversation_id)
        answered = client.answered
        name = plan.name
        answered.plan, answered.received, answered.sent = name, plan.received, plan.sent
        exchange = Exchange(
            call=await make_call(adds_usage=adds_usage),
            headers=self._make_headers(turn, plan, name),
            on_outcome=partial(self._record, turn, answered, plan),
            make_without_usage=partial(make_call, adds_usage=False) if adds_usage else None,
            probe=probe or _choose_probe(turn, plan),
            on_event=turn.on_event,
        )
        forwarded = await self.relay.forward(exchange, client)
        if forwarded.refused_usage:
            self.calls.note_refused_usage(turn)
        return forwarded.held

    async def give_back(self, turn: Turn, plan: Plan, refusal: HeldResponse, client: Reply) -> None:
        """Relays a refusal as it came."""
        await self.relay.send_held(refusal, self._make_headers(turn, plan, plan.name), client)

    def count_copied_bytes(self, turn: Turn, plan: Plan) -> int:
        """See CallMaker."""
        return self.calls.count_copied_bytes(turn, plan)

    async def count_bytes(self, turn: Turn, plan: Plan) -> int:
        """See CallMaker."""
        return await self.calls.count_bytes(turn, plan)

    def _make_headers(self, turn: Turn, plan: Plan, name: PlanName) -> dict[str, str]:
        """Say what was done with the request. Empty where the settings switch them off. name: of the plan."""
        if not self.shows_headers:
            return {}
        headers = {
            X_GATEWAY_CONVERSATION: turn.conversation_id,
            X_GATEWAY_PLAN: name,
            X_GATEWAY_TOKENS: f"received={plan.received}, sent={plan.sent}",
        }
        if plan.output is not None:
            headers[X_GATEWAY_MAX_TOKENS] = str(plan.output)
        if turn.wants_economics:
            headers[X_GATEWAY_ECONOMICS] = render_economics(self.activity.find_of(turn))
        if plan.warning is not None:
            headers[X_GATEWAY_WARNING] = plan.warning
        return headers

    def _record(self, turn: Turn, answered: Answered, plan: Plan, outcome: Outcome) -> None:
        """Records the response and learns from its usage, also if the client hung up. Never waits."""
        reading = outcome.reading
        usage = reading.usage
        answered.usage, answered.finish_reason = usage, reading.finish_reason
        is_usable = usage is not None or reading.is_complete
        if 200 <= outcome.status < 300 and is_usable and not reading.has_error:
            head = self.compactor.record_response(turn, plan, usage)
            self.branches.answer(turn, plan, head, self.time)
            self.reporter.note_request(turn, plan, usage)
        if usage is not None and is_window_exceeded(reading.finish_reason):
            self.learner.learn_from_full_window(turn, usage)


def _choose_probe(turn: Turn, plan: Plan) -> ProbeMode:
    """A successful response is held back, up to its first content, only if the request may be too large."""
    if not turn.policy.compaction.auto:
        return "none"
    if turn.thresholds is None or plan.sent >= _NEAR * turn.thresholds.soft:
        return "start"
    return "errors"
