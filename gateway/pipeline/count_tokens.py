"""Requests that only ask how many tokens they hold. The response must count what would really be sent.

The pivot and the marks active for the conversation are applied to the body before it is sent on. Nothing is
decided, recorded or started, for a count is not a turn of the conversation.
"""

from gateway.http.reply import Reply
from gateway.http.request import ReceivedBody
from gateway.pipeline.admission import Route
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.relay import Relay
from gateway.pipeline.turns import TurnBuilder
from gateway.planning.planner import Planner
from gateway.planning.rewrite import CallMaker


class CountTokens:
    def __init__(self, turns: TurnBuilder, planner: Planner, calls: CallMaker, relay: Relay) -> None:
        self._turns = turns
        self._planner = planner
        self._calls = calls
        self._relay = relay

    async def run(self, route: Route, body: ReceivedBody, client: Reply) -> None:
        """Relays the request as it would be sent, or as it came if it cannot be read."""
        call = route.with_body(body.raw)
        turn = await self._turns.build_for_count(route, body)
        if turn is not None:
            active = await self._planner.load_active(turn)
            rewritten = await self._calls.rewrite(turn, active.as_plan())
            if rewritten is not turn.received.body.data:
                call = call.with_body(rewritten)
        await self._relay.forward(Exchange(call=call), client)
