"""The way of one request: wire -> identity -> plan -> rewrite -> upstream -> usage -> compaction.

Awaits only what downstream is waiting for. Decides nothing itself.
"""

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import Final

from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from gateway.compactor import Compactor
from gateway.core.errors import RequestRefused, Unreadable, UpstreamFailed, UpstreamStalled
from gateway.core.head import Head, choose_scope
from gateway.core.plan import Plan, decide
from gateway.downstream import Answer, Downstream
from gateway.identity import Received, Recognizer, leading_digests
from gateway.incoming import read_body, stream_body
from gateway.limits import LimitsBook
from gateway.planner import Planner
from gateway.relay import Call, Exchange, Outcome, Relay
from gateway.rewriter import Rewriter
from gateway.settings import Settings, UpstreamSettings
from gateway.state import State
from gateway.tenancy import Tenancy, Tenant
from gateway.turn import Turn
from gateway.upstream import Upstreams, make_headers, make_url, read_format
from gateway.wire import chat
from gateway.wire.errors import render_error

log = logging.getLogger("gateway.proxy")

# Waiting for summaries more often than this within one request would be a loop.
_MOST_COMPACTIONS: Final = 3
_ID_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class _Request:
    """What was found out about a request before its body was looked at."""

    tenant: Tenant
    upstream: UpstreamSettings
    path: str
    url: URL
    headers: CIMultiDict[str]


class Proxy:
    def __init__(
        self,
        *,
        settings: Settings,
        tenancy: Tenancy,
        upstreams: Upstreams,
        recognizer: Recognizer,
        limits: LimitsBook,
        state: State,
        planner: Planner,
        rewriter: Rewriter,
        compactor: Compactor,
        relay: Relay,
    ) -> None:
        self._settings = settings
        self._tenancy = tenancy
        self._upstreams = upstreams
        self._recognizer = recognizer
        self._limits = limits
        self._state = state
        self._planner = planner
        self._rewriter = rewriter
        self._compactor = compactor
        self._relay = relay
        # (upstream, model) that refused an injected include_usage.
        self._usage_refusers: set[tuple[str, str]] = set()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request of the data port ends here. Raises nothing but a cancelled handler."""
        downstream = Downstream(request, self._settings.keepalive)
        try:
            await self._answer(request, downstream)
        except RequestRefused as error:
            return _refuse(request, downstream, error)
        except UpstreamFailed as error:
            log.warning("upstream failed: %s", error)
            status = 504 if isinstance(error, UpstreamStalled) else 502
            message = f"The upstream gave no answer ({error})."
            return _refuse(request, downstream, RequestRefused(status, message, kind="upstream_error"))
        except ConnectionError:
            # Downstream hung up; there is nobody left to tell.
            return downstream.answer or Answer(status=499)
        except Exception:
            # The one edge: whatever we got wrong must end as an answer, not as a silent connection.
            log.exception("request failed inside the gateway")
            failure = RequestRefused(500, "The gateway failed on this request.", kind="server_error")
            return _refuse(request, downstream, failure)
        return downstream.answer or Answer(status=500)

    async def _answer(self, request: web.BaseRequest, downstream: Downstream) -> None:
        path = request.raw_path
        if request.headers.get("Upgrade", "").lower() == "websocket":
            raise RequestRefused(426, "WebSocket is not spoken here; use HTTP.")
        tenant = self._tenancy.identify(request.headers)
        upstream = self._upstreams.choose(tenant, path)
        prepared = _Request(
            tenant, upstream, path, make_url(upstream, path), make_headers(request.raw_headers, upstream)
        )
        is_understood = request.method == "POST" and read_format(path) == chat.FORMAT
        if not is_understood or request.headers.get("x-gateway-bypass") == "1":
            await self._relay_untouched(request, prepared, downstream)
            return
        body = await read_body(request, self._settings.listen.max_body_bytes)
        try:
            received = self._recognizer.recognize(tenant.id, chat.FORMAT, body.plain)
        except Unreadable:
            await self._relay.carry(Exchange(call=_call(request, prepared, body.raw)), downstream)
            return
        turn = await self._begin_turn(request, prepared, received)
        downstream.set_streaming(is_streaming=received.body.envelope.is_streaming)
        await self._take_turn(turn, _call(request, prepared, body.raw), body.plain, downstream)

    async def _relay_untouched(
        self, request: web.BaseRequest, prepared: _Request, downstream: Downstream
    ) -> None:
        """A relay and nothing else: the body goes through as it comes."""
        body = await stream_body(request)
        call = _call(request, prepared, body)
        length = request.headers.get("Content-Length")
        if length is not None:
            call.headers["Content-Length"] = length
        await self._relay.carry(Exchange(call=call), downstream)

    async def _begin_turn(self, request: web.BaseRequest, prepared: _Request, received: Received) -> Turn:
        tenant, upstream = prepared.tenant, prepared.upstream
        conversation, envelope = received.conversation, received.body.envelope
        scope = choose_scope(
            upstream.name, envelope.model, leading_digests(conversation.leading), envelope.tools
        )
        head = self._state.find_head(conversation, scope)
        if head is None:
            head = await self._state.ask_head(tenant.id, conversation, scope)
        identity, parent = self._choose_branch(head, received)
        return Turn(
            tenant=tenant,
            upstream=upstream,
            url=prepared.url,
            raw_headers=request.raw_headers,
            received=received,
            policy=self._settings.policies[tenant.policy],
            limits=self._limits.read(upstream.name, envelope.model),
            scope=scope,
            head=head,
            conversation=identity,
            parent=parent,
        )

    def _choose_branch(self, head: Head | None, received: Received) -> tuple[str, str | None]:
        """The conversation's id; a new one for a request that leaves its nearest head's continuation."""
        own = received.conversation.key.hex()
        tools = received.body.envelope.tools
        fresh = hashlib.sha256(received.conversation.key + tools).hexdigest()[:_ID_DIGITS]
        if head is None:
            return fresh, None
        is_side_call = head.tools != tools.hex()
        if head.key == own:
            return (fresh, None) if is_side_call else (head.conversation, head.parent)
        first = own if is_side_call else self._state.claim_continuation(head, own)
        goes_on = first == own or bytes.fromhex(first) in received.conversation.chain
        if is_side_call or not goes_on:
            return fresh, head.conversation
        return head.conversation, head.parent

    async def _take_turn(self, turn: Turn, call: Call, plain: bytes, downstream: Downstream) -> None:
        self._compactor.resume(turn)
        plan = self._planner.read_plan(turn)
        if plan is None:
            plan = await self._plan_measured(turn, downstream)
        body = self._rewriter.rewrite(turn, plan)
        if body is not plain:
            call = replace(call, body=body)
            call.headers.popall("Content-Encoding", None)
        exchange = self._make_exchange(turn, plan, call, body)
        outcome = await self._relay.carry(exchange, downstream)
        self._observe(turn, plan, outcome)

    async def _plan_measured(self, turn: Turn, downstream: Downstream) -> Plan:
        """The plan near the lines: measured, and after the compactions that it cannot do without."""
        may_compact = self._compactor.may_ask(turn)
        for attempt in range(_MOST_COMPACTIONS + 1):
            situation = await self._planner.gather(turn, may_compact=may_compact)
            running = self._compactor.find_running(turn.owner, turn.received.conversation)
            decision = decide(replace(situation, is_preparing=running is not None))
            if isinstance(decision, Plan):
                return decision
            task = self._compactor.start(turn, decision.cut, "hard line")
            headers = {"x-gateway-conversation": turn.conversation} if self._shows_headers else {}
            is_ready = await downstream.wait_for(task, headers)
            may_compact = is_ready and attempt + 1 < _MOST_COMPACTIONS
        raise AssertionError("a plan without compaction is always possible")

    def _make_exchange(self, turn: Turn, plan: Plan, call: Call, body: bytes) -> Exchange:
        """Usage is asked for in streams whose client did not."""
        envelope = turn.received.body.envelope
        headers = _plan_headers(turn, plan) if self._shows_headers else {}
        exchange = Exchange(call=call, headers=headers, watches=True)
        injects = (
            envelope.is_streaming
            and not envelope.wants_usage
            and turn.upstream.include_usage
            and (turn.upstream.name, turn.model) not in self._usage_refusers
        )
        if not injects:
            return exchange
        asking = replace(
            call, body=self._rewriter.rewrite_with_usage(turn, plan), headers=call.headers.copy()
        )
        asking.headers["Accept-Encoding"] = "identity"
        asking.headers.popall("Content-Encoding", None)
        return replace(exchange, call=asking, without_usage=call)

    def _observe(self, turn: Turn, plan: Plan, outcome: Outcome) -> None:
        """One plain call; nothing is awaited any more."""
        if outcome.refused_usage:
            self._usage_refusers.add((turn.upstream.name, turn.model))
        if 200 <= outcome.status < 300 and not outcome.reading.has_error:
            self._compactor.observe(turn, plan, outcome.reading.usage)

    @property
    def _shows_headers(self) -> bool:
        return self._settings.response_headers


def _call(request: web.BaseRequest, prepared: _Request, body: object) -> Call:
    return Call(
        upstream=prepared.upstream,
        method=request.method,
        url=prepared.url,
        headers=prepared.headers,
        body=body,  # type: ignore[arg-type]
    )


def _plan_headers(turn: Turn, plan: Plan) -> dict[str, str]:
    names = [name for name, used in (("pivot", plan.pivot), ("pruned", plan.batches)) if used]
    headers = {
        "x-gateway-conversation": turn.conversation,
        "x-gateway-plan": "+".join(names) or "passthrough",
        "x-gateway-tokens": f"received={plan.received}, sent={plan.sent}",
    }
    if plan.output is not None:
        headers["x-gateway-max-tokens"] = str(plan.output)
    if plan.warning is not None:
        headers["x-gateway-warning"] = plan.warning
    return headers


def _refuse(request: web.BaseRequest, downstream: Downstream, error: RequestRefused) -> web.StreamResponse:
    """An error of ours, in the client's wire format; after a commit there is only the broken connection."""
    if downstream.answer is not None:
        downstream.abort()
        return downstream.answer
    body = render_error(request.path, error)
    return web.Response(status=error.status, body=body, content_type="application/json")
