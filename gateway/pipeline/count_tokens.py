"""Requests that only ask how many tokens they hold: the answer must be for what would really be sent.

What is in force for the conversation is applied to the body before it goes on. Nothing is decided, recorded
or begun: a count is no turn.
"""

from gateway.core.compaction.plan import Plan
from gateway.core.errors import Unreadable
from gateway.pipeline.admission import Route
from gateway.pipeline.rewriter import Rewriter
from gateway.pipeline.turns import TurnBuilder
from gateway.planning.planner import Planner
from gateway.upstream.client import UpstreamCall
from gateway.wire.wire_format import WireFormat


class CountTokens:
    def __init__(self, reception: TurnBuilder, planner: Planner, rewriter: Rewriter) -> None:
        self._reception = reception
        self._planner = planner
        self._rewriter = rewriter

    async def rewrite(
        self, admission: Route, form: WireFormat, call: UpstreamCall, plain: bytes
    ) -> UpstreamCall:
        """The call for what would be sent; `call` itself where nothing is in force, or cannot be read."""
        try:
            turn = await self._reception.look(admission, form, plain)
        except Unreadable:
            return call
        pivot, batches = await self._planner.load_in_force(turn)
        plan = Plan(pivot=pivot, batches=tuple(batches), new_batch=None, received=0, sent=0, output=None)
        body = self._rewriter.rewrite(turn, plan)
        return call if body is turn.received.body.data else call.with_body(body)
