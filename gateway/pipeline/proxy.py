"""The way of one request, told in the order in which it goes.

Its head is admitted and its tenant's quota asked; its body is read and its conversation recognized; it is
planned and sent, and sent again smaller if the upstream calls it too large. What is known of it at its end is
handed over in one call. Awaits only what the client is waiting for. Decides nothing.
"""

import logging
import time
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import MemoryBudget, Share
from gateway.compaction.manual import ManualCompaction
from gateway.conversations.turn import Turn
from gateway.core.compaction.manual import Failed, InProgress, ManualOutcome, describe_outcome
from gateway.core.errors import BeyondBounds, RequestRefused, UpstreamFailed, UpstreamStalled
from gateway.headers import X_GATEWAY_CONVERSATION, X_GATEWAY_WARNING
from gateway.http.client import UpstreamCall
from gateway.http.reply import Reply
from gateway.http.request import ReceivedBody, Request, read_body, stream_body
from gateway.pipeline.admission import Admission, Route
from gateway.pipeline.log import RequestLog
from gateway.pipeline.name_guard import NameGuard
from gateway.pipeline.plan import PlanningStep, WaitBudget
from gateway.pipeline.relay import Exchange, Relay
from gateway.pipeline.sender import Sender
from gateway.pipeline.turns import TurnBuilder
from gateway.planning.planner import Planner
from gateway.planning.rewrite import CallMaker
from gateway.sessions.keeper import SessionKeeper
from gateway.settings import Settings
from gateway.tenants.quota import QuotaGate
from gateway.wire.format import LocalResponse
from gateway.wire.references import StoredHistory

log = logging.getLogger("gateway.proxy")

_LOST_THREAD: Final = (
    "This thread has no room left, and the gateway does not know its beginning, so it cannot compact it. "
    'Send the full conversation with `thread: {"type": "create"}`.'
)

# Of a response of the gateway's own. The id is taken from the chain, so a request that is sent again gets the
# same response id.
_ID_DIGITS: Final = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Proxy:
    settings: Settings
    # Of all bodies under way.
    memory: MemoryBudget
    lanes: Lanes
    admission: Admission
    gate: QuotaGate
    names: NameGuard
    sessions: SessionKeeper
    turns: TurnBuilder
    manual: ManualCompaction
    planner: Planner
    calls: CallMaker
    planning: PlanningStep
    sender: Sender
    relay: Relay
    log: RequestLog

    async def respond(self, request: Request, client: Reply) -> None:
        """Responds to any request of the data port. Raises only ConnectionError, if the client hung up."""
        client.keepalive = self.settings.keepalive
        try:
            route = self.admission.admit(request.head)
            async with self.gate.admit(route.tenant):
                await self._serve(route, request, client)
        except RequestRefused as error:
            await client.refuse(error)
        except UpstreamFailed as error:
            log.warning("no response from upstream: %s", str(error))
            status = 504 if isinstance(error, UpstreamStalled) else 502
            refused = RequestRefused(status, f"No response from upstream ({error}).", kind="upstream_error")
            await client.refuse(refused)
        except ConnectionError:
            raise
        except Exception:
            # The one edge: an error of ours must end in a response, not in a silent connection.
            log.exception("request failed inside the gateway")
            failure = RequestRefused(500, "The gateway failed on this request.", kind="server_error")
            await client.refuse(failure)
        finally:
            self.log.append(request.head, client.end())

    async def _serve(self, route: Route, request: Request, client: Reply) -> None:
        if route.stored_response is not None:
            await self.names.check(route, route.stored_response)
        if route.format is None:
            self.log.note_relayed(request.head)
        if route.format is None and route.naming is None:
            await self._pass(route, route.with_body(stream_body(request), request.length), client)
            return
        with self.memory.open(route.tenant.id) as share:
            body = await read_body(request, self.settings.listen.max_body_bytes, share, self.lanes)
            if route.naming is not None:
                await self.names.check_body(route, route.naming, body)
            try:
                await self._follow(route, body, share, client)
            except BeyondBounds as error:
                share.end_work()
                log.warning("a request passes unread: %s", error)
                await self._pass(route, route.with_body(body.raw), client, f"not read: {error}")

    async def _follow(self, route: Route, body: ReceivedBody, share: Share, client: Reply) -> None:
        """Raises BeyondBounds, before anything was sent, for a body that holds more than is read.

        share: of the memory, with the body. It is given back with the response.
        """
        if body.beyond is not None:
            raise BeyondBounds(body.beyond)
        await share.begin_work(len(body.plain))
        if route.is_count:
            await self._count(route, body, client)
            return
        turn = await self.turns.build(route, body)
        if not isinstance(turn, Turn):
            share.end_work()
            await self._forward_unknown(route, body, turn, client)
            return
        turn = self.names.watch(route, turn)
        if turn.purpose == "title":
            turn = self.sessions.watch(turn)
        self.log.note_turn(turn, client.answered)
        headers = {X_GATEWAY_CONVERSATION: turn.conversation_id} if self.settings.response_headers else {}
        client.set_format(turn.received.format, headers, is_streaming=client.answered.is_streaming)
        if turn.command is not None:
            share.end_work(turn.weight_bytes)
            await self.compact(turn, turn.command, client)
            return
        budget = WaitBudget(turn.policy.summary)
        plan = await self.planning.plan(turn, budget, client)
        await self.sender.send(turn, plan, budget, client, share)

    async def compact(self, turn: Turn, instructions: str, client: Reply) -> None:
        """Answers a `/compact` in the upstream's place. Nothing of it goes upstream but the summary call.

        Waits no longer than a request waits for its summaries. A compaction that takes longer goes on.
        """
        task = self.manual.compact(turn, instructions)
        seconds = turn.policy.summary.deadline_seconds
        is_done = task is not None and await client.wait_for(task, seconds)
        outcome: ManualOutcome = InProgress()
        if task is not None and is_done:
            # A tenant may be deleted, or the gateway may stop, while it is made.
            outcome = Failed("it was cancelled") if task.cancelled() else task.result()
        response = LocalResponse(
            id=turn.received.conversation.key.hex()[:_ID_DIGITS],
            model=turn.model,
            created_seconds=int(time.time()),
            text=describe_outcome(outcome),
            is_streamed=turn.received.body.envelope.is_streaming,
        )
        await client.reply(turn.received.format.render_local_response(response))

    async def _count(self, route: Route, body: ReceivedBody, client: Reply) -> None:
        """Relays a request for a count of tokens as the turn would be sent, or as it came if it cannot be
        read. It is not a turn of the conversation, so nothing is decided, recorded or started for it.
        """
        call = route.with_body(body.raw)
        turn = await self.turns.build_for_count(route, body)
        if turn is not None:
            active = await self.planner.load_active(turn)
            rewritten = await self.calls.rewrite(turn, active.as_plan())
            if rewritten is not turn.received.body.data:
                call = call.with_body(rewritten)
        await self.relay.forward(Exchange(call=call), client)

    async def _forward_unknown(
        self, route: Route, body: ReceivedBody, lost: StoredHistory | None, client: Reply
    ) -> None:
        """Relays a request without a turn. lost: of a thread whose beginning is not known.

        The upstream holds the rest of it, so nothing in it can be compacted. If it is refused as too large,
        the client gets the API's error for a lost thread (RequestRefused), and the official SDKs then send
        their whole history, which can be compacted.
        """
        call = route.with_body(body.raw)
        if lost is None:
            await self._pass(route, call, client)
            return
        client.answered.more = "a thread of unknown history"
        exchange = replace(self.names.make_exchange(route, call), probe="start")
        if await self.relay.forward(exchange, client) is not None:
            log.info("a thread of unknown history is too large: its client is asked for all of it")
            raise RequestRefused(lost.unknown_status, _LOST_THREAD, code=lost.unknown_code)

    async def _pass(self, route: Route, call: UpstreamCall, client: Reply, warning: str = "") -> None:
        """Relays a request as it came: one that is not understood, or for which the gateway is bypassed."""
        headers = {X_GATEWAY_WARNING: warning} if warning and self.settings.response_headers else {}
        await self.relay.forward(self.names.make_exchange(route, call, headers), client)
