"""Sends a turn as its plan wants it: the rewritten body, usage asked for, headers that tell what was done."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.downstream.responder import Responder
from gateway.headers import (
    X_GATEWAY_CONVERSATION,
    X_GATEWAY_MAX_TOKENS,
    X_GATEWAY_PLAN,
    X_GATEWAY_TOKENS,
    X_GATEWAY_WARNING,
)
from gateway.lru import Lru
from gateway.pipeline.exchange import Exchange, Outcome
from gateway.pipeline.relay import Relay
from gateway.pipeline.rewriter import Rewriter
from gateway.settings import Settings
from gateway.upstream.client import UpstreamCall
from gateway.upstream.refusal_probe import HeldResponse, ProbeMode

_REFUSERS_BYTES = 1 << 18
_REFUSER_WEIGHT_BYTES = 256


class Watching(msgspec.Struct, frozen=True):
    """observe: told what the answer said, even if downstream does not stay. care: as in Exchange."""

    observe: Callable[[Outcome], None]
    care: ProbeMode


class Sender:
    def __init__(self, settings: Settings, rewriter: Rewriter, relay: Relay) -> None:
        self._shows_headers = settings.response_headers
        self._rewriter = rewriter
        self._relay = relay
        # (upstream, model) that refused an include_usage of ours.
        self._refusers: Lru[tuple[str, str], bool] = Lru(_REFUSERS_BYTES)

    async def pass_through(self, call: UpstreamCall, downstream: Responder) -> None:
        """A relay and nothing else."""
        await self._relay.forward(Exchange(call=call), downstream)

    async def send(
        self, turn: Turn, plan: Plan, call: UpstreamCall, downstream: Responder, watch: Watching
    ) -> HeldResponse | None:
        """The answer, if upstream calls the request too large; any other is on its way downstream."""
        body = self._rewriter.rewrite(turn, plan)
        if body is not turn.received.body.data:
            call = call.with_body(body)
        headers = _plan_headers(turn, plan) if self._shows_headers else {}
        exchange = Exchange(
            call=call, headers=headers, on_answered=watch.observe, probe=watch.care, on_event=turn.note
        )
        if self._must_ask_for_usage(turn):
            plain = call.with_body(self._rewriter.rewrite_with_usage(turn, plan))
            asking = replace(plain, head=plain.head.asking_for_identity)
            exchange = replace(exchange, call=asking, without_usage=call)
        forwarded = await self._relay.forward(exchange, downstream)
        if forwarded.refused_usage_option:
            self._refusers.put(
                (turn.upstream.name, turn.model), True, _REFUSER_WEIGHT_BYTES + len(turn.model)
            )
        return forwarded.held

    async def give_back(self, turn: Turn, plan: Plan, held: HeldResponse, downstream: Responder) -> None:
        """A refusal that nothing helped against, as it came."""
        headers = _plan_headers(turn, plan) if self._shows_headers else {}
        await self._relay.send_held(held, headers, downstream)

    def measure(self, turn: Turn, plan: Plan) -> int:
        """Bytes of the body that a plan makes."""
        return len(self._rewriter.rewrite(turn, plan))

    def _must_ask_for_usage(self, turn: Turn) -> bool:
        """In streams whose client did not, unless this model is known to refuse it."""
        envelope = turn.received.body.envelope
        if not envelope.is_streaming or envelope.wants_usage or not turn.upstream.include_usage:
            return False
        return (turn.upstream.name, turn.model) not in self._refusers


def _plan_headers(turn: Turn, plan: Plan) -> dict[str, str]:
    headers = {
        X_GATEWAY_CONVERSATION: turn.conversation,
        X_GATEWAY_PLAN: _name_plan(plan),
        X_GATEWAY_TOKENS: f"received={plan.received}, sent={plan.sent}",
    }
    if plan.output is not None:
        headers[X_GATEWAY_MAX_TOKENS] = str(plan.output)
    if plan.warning is not None:
        headers[X_GATEWAY_WARNING] = plan.warning
    return headers


def _name_plan(plan: Plan) -> str:
    if plan.pivot is None:
        return "pruned" if plan.batches else "passthrough"
    if plan.pivot.is_digest:
        return "digest"
    return "pivot+pruned" if plan.batches else "pivot"
