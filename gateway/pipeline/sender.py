"""Sends a turn by its plan: rewrites the body, asks for usage, and says in headers of the response what was
done. Then records the response.

A turn that upstream refuses as too large is sent again, at most twice, each time smaller. The gateway learns
from the refusal, compacts and tries once more; then once with a digest; then the client gets the upstream's
own error, unchanged (docs/design.md, Overflow errors).
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from gateway.activity.book import ActivityBook
from gateway.activity.economics import render_economics
from gateway.bounds.memory import Share
from gateway.compaction.turn_recorder import TurnRecorder
from gateway.conversations.branches import Branches
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan, fingerprint_plan
from gateway.core.compaction.request import CompactionReason
from gateway.core.compaction.situation import RefusedRequest
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
from gateway.pipeline.plan import PlanningStep, WaitBudget
from gateway.pipeline.relay import Exchange, HeldResponse, ProbeMode, Relay
from gateway.planning.learning import Learner
from gateway.planning.rewrite import CallMaker
from gateway.reporting.reporter import Reporter
from gateway.wire.reader import Reading
from gateway.wire.reading import is_window_exceeded

# Tokenizers differ by a factor of 1.7: a request of half the soft threshold may already be refused.
_NEAR: Final = 0.5
# Once with a summary, once with a digest.
_MAX_RETRIES: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    # Whether responses say what was done with their requests.
    shows_headers: bool
    # What conversations cost, for clients that ask.
    activity: ActivityBook
    planning: PlanningStep
    calls: CallMaker
    relay: Relay
    responses: TurnRecorder
    branches: Branches
    # Of the settings that the sender belongs to.
    time: int
    learner: Learner
    reporter: Reporter

    async def send(self, turn: Turn, plan: Plan, budget: WaitBudget, client: Reply, share: Share) -> None:
        """Relays the response to the plan, or to a smaller one. budget: of the request, what its first plan
        has left of it. share: of the memory; what planning needs is given back before each call, and taken
        again before each retry. Raises RequestRefused if there is none.
        """
        held = await self._send(turn, plan, client, share, _choose_probe(turn, plan))
        if held is None:
            return
        first, refused, body_bytes = held, plan, len(turn.received.body.data)
        for attempt in range(_MAX_RETRIES):
            await share.begin_work(body_bytes)
            if not attempt:
                plan = await self.planning.with_counted_size(turn, plan, client)
            size, overflow = await self._measure(turn, plan), held.overflow
            turn = await self.learner.learn_from_refusal(turn, plan, overflow, size[0], is_first=attempt == 0)
            again = replace(turn, refused=RefusedRequest(view=plan.view, overflow=overflow))
            smaller = await self.planning.plan_measured(again, budget, client, CompactionReason.REFUSED)
            budget.end()
            # Strictly, in bytes, for estimates may have changed; or equal with a shorter reply asked for.
            is_smaller = await self._measure(turn, smaller) < size
            self.reporter.note_refusal(turn, plan, overflow, is_retried=is_smaller)
            if not is_smaller:
                break
            plan = smaller
            held = await self._send(turn, plan, client, share, "start")
            if held is None:
                self.reporter.note_recovered()
                return
        await self.relay.send_held(first, self._make_headers(turn, refused), client)

    async def _measure(self, turn: Turn, plan: Plan) -> tuple[int, int]:
        body = await self.calls.rewrite(turn, plan)
        return len(body), plan.output or turn.requested_tokens or 0

    async def _send(
        self, turn: Turn, plan: Plan, client: Reply, share: Share, probe: ProbeMode
    ) -> HeldResponse | None:
        """Relays the response, unless upstream calls the request too large: then returns it unsent.

        probe: how much of the response is held back to find a refusal.
        """
        await self.responses.secure(turn, plan)
        adds_usage = self.calls.adds_usage(turn)
        make_call = partial(self.calls.make, turn, plan)
        if turn.note_sent is not None:
            is_deleted = partial(self.branches.was_deleted, turn)
            turn.note_sent(fingerprint_plan(plan), turn.conversation_id, is_deleted)
        answered = client.answered
        answered.plan, answered.received, answered.sent = plan.name, plan.received, plan.sent
        call = await make_call(adds_usage=adds_usage)
        copy = call.body if isinstance(call.body, bytes) and call.body is not turn.raw_body else b""
        share.end_work(turn.weight_bytes + len(copy))
        exchange = Exchange(
            call=call,
            headers=self._make_headers(turn, plan),
            on_end=partial(self._record, turn, answered, plan),
            make_without_usage=partial(make_call, adds_usage=False) if adds_usage else None,
            on_usage_refused=partial(self.calls.note_refused_usage, turn) if adds_usage else None,
            probe=probe,
            on_event=turn.on_event,
        )
        return await self.relay.forward(exchange, client)

    def _make_headers(self, turn: Turn, plan: Plan) -> dict[str, str]:
        """Say what was done with the request. Empty where the settings switch them off."""
        if not self.shows_headers:
            return {}
        headers = {
            X_GATEWAY_CONVERSATION: turn.conversation_id,
            X_GATEWAY_PLAN: plan.name,
            X_GATEWAY_TOKENS: f"received={plan.received}, sent={plan.sent}",
        }
        if plan.output is not None:
            headers[X_GATEWAY_MAX_TOKENS] = str(plan.output)
        if turn.wants_economics:
            headers[X_GATEWAY_ECONOMICS] = render_economics(self.activity.find_of(turn))
        if plan.warning is not None:
            headers[X_GATEWAY_WARNING] = plan.warning
        return headers

    def _record(self, turn: Turn, answered: Answered, plan: Plan, status: int, reading: Reading) -> None:
        """Records the response and learns from its usage, also if the client hung up. Never waits."""
        usage = reading.usage
        answered.usage, answered.finish_reason = usage, reading.finish_reason
        is_usable = usage is not None or reading.is_complete
        if 200 <= status < 300 and is_usable and not reading.has_error:
            head = self.responses.record_response(turn, plan, usage)
            self.branches.answer(turn, plan, head, self.time)
            self.reporter.note_request(turn, plan, usage, is_deleted=self.branches.was_deleted(turn))
        if usage is not None and is_window_exceeded(reading.finish_reason):
            self.learner.learn_from_full_window(turn, usage)


def _choose_probe(turn: Turn, plan: Plan) -> ProbeMode:
    """A successful response is held back, up to its first content, only if the request may be too large."""
    if not turn.policy.compaction.auto:
        return "none"
    if turn.thresholds is None or plan.sent >= _NEAR * turn.thresholds.soft:
        return "start"
    return "errors"
