"""The path of one request: admission, turn, plan, sending, and a retry if it was too large.

Awaits only what the client is waiting for. Decides nothing.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.bounds.lanes import Lanes
from gateway.bounds.memory import MemoryBudget, Share
from gateway.conversations.turn import Turn
from gateway.core.errors import BeyondBounds, RequestRefused, UpstreamFailed, UpstreamStalled
from gateway.headers import X_GATEWAY_WARNING
from gateway.http.answered import Answered
from gateway.http.client import UpstreamCall
from gateway.http.reply import Reply
from gateway.http.request import ReceivedBody, Request, read_body, stream_body
from gateway.pipeline.admission import Admission, Route
from gateway.pipeline.commands import Commands
from gateway.pipeline.count_tokens import CountTokens
from gateway.pipeline.first_seen import FirstSeen, log_end
from gateway.pipeline.name_guard import NameGuard
from gateway.pipeline.overflow_retry import OverflowRetry
from gateway.pipeline.planning_step import PlanningStep, WaitBudget
from gateway.pipeline.relay import Relay
from gateway.pipeline.sender import Sender
from gateway.pipeline.turns import TurnBuilder
from gateway.reporting.metrics import Metrics
from gateway.sessions.keeper import SessionKeeper
from gateway.settings import Settings
from gateway.tenants.quota import QuotaGate

if TYPE_CHECKING:
    from gateway.traces import Tracer

log = logging.getLogger("gateway.proxy")

# Measured: reading a body takes up to five times its bytes while it goes on. Texts for the tokenizer, and
# what a plan or a retry makes of the messages, take up to three.
_READING_COPIES: Final = 5
_PLANNING_COPIES: Final = 3
_LOST_THREAD: Final = (
    "This thread has no room left, and the gateway does not know its beginning, so it cannot compact it. "
    'Send the full conversation with `thread: {"type": "create"}`.'
)
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


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
    commands: Commands
    count_tokens: CountTokens
    planning: PlanningStep
    sender: Sender
    overflow_retry: OverflowRetry
    relay: Relay
    metrics: Metrics
    first_seen: FirstSeen
    # None where traces are off.
    tracer: "Tracer | None" = None

    async def respond(self, request: Request, client: Reply) -> None:
        """Responds to any request of the data port. Raises only ConnectionError, if the client hung up."""
        client.keepalive = self.settings.keepalive
        if self.tracer is None:
            await self._respond(request, client)
            return
        with self.tracer.request(request.head, client.answered):
            await self._respond(request, client)

    async def _respond(self, request: Request, client: Reply) -> None:
        self.metrics.open_requests += 1
        try:
            route = self.admission.admit(request.head)
            quota = route.tenant.quota
            if quota is None or not quota.limits_requests:
                await self._serve(route, request, client)
            else:
                async with self.gate.admit(route.tenant, quota):
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
            self.metrics.open_requests -= 1
            client.answered.end(client.status)
            self.metrics.note_end(client.answered)
            log_end(request.head, client.answered)

    async def _serve(self, route: Route, request: Request, client: Reply) -> None:
        await self.names.check_path(route)
        if route.format is None:
            self.first_seen.note_relayed(request.head)
        if route.format is None and route.naming is None:
            await self._forward(route, route.with_body(stream_body(request), request.length), client)
            return
        with self.memory.open(route.tenant.id) as share:
            body = await read_body(request, self.settings.listen.max_body_bytes, share, self.lanes)
            body_bytes = share.size_bytes
            client.answered.read_seconds = time.monotonic()
            await self.names.check_body(route, body)
            try:
                await self._serve_body(route, body, share, client)
            except BeyondBounds as error:
                await share.fit(body_bytes)
                log.warning("a request passes unread: %s", error)
                headers = {X_GATEWAY_WARNING: f"not read: {error}"} if self.settings.response_headers else {}
                await self._forward(route, route.with_body(body.raw), client, headers)

    async def _serve_body(self, route: Route, body: ReceivedBody, share: Share, client: Reply) -> None:
        """Raises BeyondBounds, before anything was sent, for a body that holds more than is read.

        share: of the memory, with the body. It is given back with the response.
        """
        if body.beyond is not None:
            raise BeyondBounds(body.beyond)
        body_bytes = share.size_bytes
        await share.fit_work(body_bytes + _READING_COPIES * len(body.plain), len(body.plain))
        if route.is_count:
            await self.count_tokens.run(route, body, client)
            return
        turn = await self.turns.build(route, body) if route.format is not None else None
        if route.format is None or turn is None:
            await share.fit(body_bytes)
            await self._forward_unknown(route, body, client)
            return
        # With the facts of its messages, and responses that it names.
        held_bytes = max(body_bytes, turn.weight_bytes)
        turn = self.sessions.watch(self.names.watch(route, turn))
        self.first_seen.note_turn(turn)
        client.answered.body_bytes = len(body.raw)
        _note_turn(client.answered, turn)
        client.set_format(route.format, is_streaming=client.answered.is_streaming)
        if turn.command is not None:
            await share.fit(held_bytes)
            await self.commands.run(turn, turn.command, client)
            return
        budget = WaitBudget(turn.policy.summary)
        read_bytes = len(turn.received.body.data)
        planning_bytes = _PLANNING_COPIES * read_bytes
        await share.fit_work(held_bytes + planning_bytes, read_bytes)
        plan = await self.planning.plan(turn, budget, client)
        sent_bytes = held_bytes + self.sender.count_copied_bytes(turn, plan)
        await share.fit(sent_bytes)
        refusal = await self.sender.send(turn, plan, client)
        if refusal is not None:
            await share.fit_work(sent_bytes + planning_bytes, read_bytes)
            await self.overflow_retry.run(turn, plan, refusal, budget, client)

    async def _forward(
        self, route: Route, call: UpstreamCall, client: Reply, headers: Mapping[str, str] = _NO_HEADERS
    ) -> None:
        """Relays a request as it came: one that the gateway does not understand, or is told to bypass.

        headers: added to the response.
        """
        exchange = replace(self.names.make_exchange(route, call), headers=dict(headers))
        await self.relay.forward(exchange, client)

    async def _forward_unknown(self, route: Route, body: ReceivedBody, client: Reply) -> None:
        """Relays a request without a turn.

        The upstream holds the rest of a thread, so nothing in it can be compacted. If it is refused as too
        large, the client gets the API's error for a lost thread (RequestRefused), and the official SDKs then
        send their whole history, which can be compacted.
        """
        call = route.with_body(body.raw)
        lost = await self.turns.find_lost_thread(route, body.plain)
        if lost is None:
            await self._forward(route, call, client)
            return
        client.answered.more = "a thread of unknown history"
        exchange = replace(self.names.make_exchange(route, call), probe="start")
        forwarded = await self.relay.forward(exchange, client)
        if forwarded.held is not None:
            log.info("a thread of unknown history is too large: its client is asked for all of it")
            raise RequestRefused(lost.unknown_status, _LOST_THREAD, code=lost.unknown_code)


def _note_turn(answered: Answered, turn: Turn) -> None:
    envelope = turn.received.body.envelope
    answered.format, answered.conversation = turn.received.format.name, turn.conversation_id
    answered.tenant, answered.model = turn.tenant.display_name, turn.model
    answered.chosen_upstream, answered.base_url = turn.upstream.name, turn.upstream.base_url
    answered.requested_tokens, answered.is_streaming = envelope.requested_tokens, envelope.is_streaming
