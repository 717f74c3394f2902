"""What a client asks of the gateway itself: a `/compact`, answered in the upstream's place, and a count of
tokens, which must count what would really be sent.

`core.compaction.manual` says which texts are commands. Nothing of a command goes upstream but the summary
call. A count is not a turn of the conversation, so nothing is decided, recorded or started for it.
"""

import asyncio
import time
from typing import Final

from gateway.compaction.manual import ManualCompaction
from gateway.conversations.turn import Turn
from gateway.core.compaction.manual import Failed, InProgress, ManualOutcome, describe_outcome
from gateway.http.reply import Reply
from gateway.http.request import ReceivedBody
from gateway.pipeline.admission import Route
from gateway.pipeline.relay import Exchange, Relay
from gateway.pipeline.turns import TurnBuilder
from gateway.planning.planner import Planner
from gateway.planning.rewrite import CallMaker
from gateway.wire.format import LocalResponse

# The id is taken from the chain, so a request that is sent again gets the same response id.
_ID_DIGITS: Final = 24


class Commands:
    def __init__(self, manual: ManualCompaction) -> None:
        self._manual = manual

    async def run(self, turn: Turn, instructions: str, client: Reply) -> None:
        """Waits no longer than a request waits for its summaries. A compaction that takes longer goes on."""
        task = self._manual.compact(turn, instructions)
        seconds = turn.policy.summary.deadline_seconds
        is_done = task is not None and await client.wait_for(task, seconds)
        outcome = _read_outcome(task) if task is not None and is_done else InProgress()
        response = LocalResponse(
            id=turn.received.conversation.key.hex()[:_ID_DIGITS],
            model=turn.model,
            created_seconds=int(time.time()),
            text=describe_outcome(outcome),
            is_streamed=turn.received.body.envelope.is_streaming,
        )
        await client.reply(turn.received.format.render_local_response(response))


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


def _read_outcome(task: "asyncio.Task[ManualOutcome]") -> ManualOutcome:
    """A tenant may be deleted, or the gateway may stop, while it is made."""
    return Failed("it was cancelled") if task.cancelled() else task.result()
