"""Sends a turn by its plan.

The body is rewritten, usage is requested, and headers of the response show what was done.
"""

from functools import partial
from typing import Final

from gateway.compaction.compactor import Compactor
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.plan_fingerprint import UNCHANGED, fingerprint_plan
from gateway.downstream.responder import Responder
from gateway.headers import (
    X_GATEWAY_CONVERSATION,
    X_GATEWAY_MAX_TOKENS,
    X_GATEWAY_PLAN,
    X_GATEWAY_TOKENS,
    X_GATEWAY_WARNING,
)
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.fair_rewriter import FairRewriter
from gateway.pipeline.outcomes import OutcomeRecorder
from gateway.pipeline.relay import Relay
from gateway.settings import Settings
from gateway.upstream.refusal_probe import HeldResponse, ProbeMode
from gateway.upstream.sending import UpstreamCall

_REFUSERS_BYTES: Final = 1 << 18
_REFUSER_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 100
# Tokenizers differ by a factor of 1.7: a request of half the soft threshold may already be refused.
_NEAR: Final = 0.5


class Sender:
    def __init__(
        self,
        settings: Settings,
        rewriter: FairRewriter,
        relay: Relay,
        compactor: Compactor,
        outcomes: OutcomeRecorder,
    ) -> None:
        self._shows_headers = settings.response_headers
        self._rewriter = rewriter
        self._relay = relay
        self._compactor = compactor
        self._outcomes = outcomes
        # (upstream, model) that refused an include_usage of ours.
        self._refusers: Lru[tuple[str, str], bool] = Lru(_REFUSERS_BYTES)

    async def send(
        self, turn: Turn, plan: Plan, client: Responder, probe: ProbeMode | None = None
    ) -> HeldResponse | None:
        """Relays the response, unless upstream calls the request too large: then returns it unsent.

        probe: how much of the response is held back to find that out; None leaves it to the plan.
        """
        await self._compactor.secure(turn, plan)
        asks_for_usage = self._must_ask_for_usage(turn)
        make_call = partial(self._make_call, turn, plan)
        if turn.note_sent is not None:
            turn.note_sent(fingerprint_plan(plan), turn.conversation_id)
        call = await (self._make_asking_call(turn, plan) if asks_for_usage else make_call())
        note = client.note
        note.plan, note.received, note.sent = plan.name, plan.received, plan.sent
        exchange = Exchange(
            call=call,
            headers=self._make_headers(turn, plan),
            on_outcome=partial(self._outcomes.record, turn, plan, note),
            make_without_usage=make_call if asks_for_usage else None,
            probe=probe or _choose_probe(turn, plan),
            on_event=turn.on_event,
        )
        forwarded = await self._relay.forward(exchange, client)
        if forwarded.refused_usage_option:
            self._refusers.put(
                (turn.upstream.name, turn.model), True, _REFUSER_WEIGHT_BYTES + weigh_texts(turn.model)
            )
        return forwarded.held

    async def _make_call(self, turn: Turn, plan: Plan) -> UpstreamCall:
        call = UpstreamCall(turn.upstream, turn.upstream_head, turn.raw_body)
        if _passes_as_received(turn, plan):
            return call
        return call.with_body(await self._rewriter.rewrite(turn, plan))

    async def _make_asking_call(self, turn: Turn, plan: Plan) -> UpstreamCall:
        """The same with a request for usage, and for a response that can be edited as it comes."""
        head = turn.upstream_head.without_encoding.asking_for_identity
        return UpstreamCall(turn.upstream, head, await self._rewriter.rewrite_with_usage(turn, plan))

    async def give_back(self, turn: Turn, plan: Plan, refusal: HeldResponse, client: Responder) -> None:
        """Relays a refusal as it came."""
        await self._relay.send_held(refusal, self._make_headers(turn, plan), client)

    def count_copied_bytes(self, turn: Turn, plan: Plan) -> int:
        """The memory for the bodies that are made of the received one, which is often sent as it is."""
        copies = (not _passes_as_received(turn, plan)) + self._must_ask_for_usage(turn)
        return copies * len(turn.received.body.data)

    async def count_bytes(self, turn: Turn, plan: Plan) -> int:
        """Bytes of the body that a plan makes."""
        return len(await self._rewriter.rewrite(turn, plan))

    def _must_ask_for_usage(self, turn: Turn) -> bool:
        """True for a stream whose client did not ask, unless this model is known to refuse the option."""
        envelope = turn.received.body.envelope
        if not envelope.is_streaming or envelope.wants_usage or not turn.upstream.include_usage:
            return False
        return (turn.upstream.name, turn.model) not in self._refusers

    def _make_headers(self, turn: Turn, plan: Plan) -> dict[str, str]:
        if not self._shows_headers:
            return {}
        headers = {
            X_GATEWAY_CONVERSATION: turn.conversation_id,
            X_GATEWAY_PLAN: plan.name,
            X_GATEWAY_TOKENS: f"received={plan.received}, sent={plan.sent}",
        }
        if plan.output is not None:
            headers[X_GATEWAY_MAX_TOKENS] = str(plan.output)
        if plan.warning is not None:
            headers[X_GATEWAY_WARNING] = plan.warning
        return headers


def _passes_as_received(turn: Turn, plan: Plan) -> bool:
    """Whether the upstream holds exactly the history that would be sent: it holds what was sent before the
    response that the request names, and nothing of a request that names none.
    """
    held = turn.received.held
    if held == UNCHANGED or plan.output is not None:
        return not plan.changes_body
    return fingerprint_plan(plan) == held


def _choose_probe(turn: Turn, plan: Plan) -> ProbeMode:
    """A successful response is held back, up to its first content, only if the request may be too large."""
    if not turn.policy.auto:
        return "none"
    if turn.thresholds is None or plan.sent >= _NEAR * turn.thresholds.soft:
        return "start"
    return "errors"
