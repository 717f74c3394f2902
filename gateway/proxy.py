"""The way of one request: wire -> identity -> plan -> rewrite -> upstream -> usage -> compaction.

Awaits only what downstream is waiting for. Decides nothing itself.
"""

import logging
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from gateway.compactor import Compactor
from gateway.core.errors import RequestRefused, Unreadable, UpstreamFailed, UpstreamStalled
from gateway.core.plan import Plan, decide
from gateway.downstream import Answer, Downstream
from gateway.entrance import Admission, Entrance
from gateway.incoming import read_body, stream_body
from gateway.planner import Planner
from gateway.reception import Reception
from gateway.relay import Body, Call, Outcome
from gateway.sender import Sender
from gateway.settings import Settings
from gateway.turn import Turn
from gateway.wire.errors import render_error

log = logging.getLogger("gateway.proxy")

# A history of many windows is folded in chunks; more of them within one request would be a loop.
_MOST_COMPACTIONS: Final = 8
# What nginx calls a client that closed its connection; nobody reads it.
_HUNG_UP: Final = 499


class Proxy:
    def __init__(
        self,
        settings: Settings,
        entrance: Entrance,
        reception: Reception,
        preparation: "Preparation",
        sender: Sender,
    ) -> None:
        self._settings = settings
        self._entrance = entrance
        self._reception = reception
        self._preparation = preparation
        self._sender = sender

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request of the data port ends here. Raises nothing but a cancelled handler."""
        downstream = Downstream(request, self._settings.keepalive)
        try:
            await self._carry(request, downstream)
        except RequestRefused as error:
            return await _refuse(request, downstream, error)
        except UpstreamFailed as error:
            log.warning("no answer from upstream: %s", error)
            status = 504 if isinstance(error, UpstreamStalled) else 502
            message = f"The upstream gave no answer ({error})."
            refused = RequestRefused(status, message, kind="upstream_error")
            return await _refuse(request, downstream, refused)
        except ConnectionError:
            # Downstream hung up; there is nobody left to tell.
            return downstream.answer or Answer(status=_HUNG_UP)
        except Exception:
            # The one edge: whatever we got wrong must end as an answer, not as a silent connection.
            log.exception("request failed inside the gateway")
            failure = RequestRefused(500, "The gateway failed on this request.", kind="server_error")
            return await _refuse(request, downstream, failure)
        return downstream.answer or Answer(status=_HUNG_UP)

    async def _carry(self, request: web.BaseRequest, downstream: Downstream) -> None:
        admission = self._entrance.admit(request)
        if not admission.is_understood:
            call = _make_call(admission, await stream_body(request))
            call = msgspec.structs.replace(call, headers=call.headers.copy())
            length = request.headers.get("Content-Length")
            if length is not None:
                call.headers["Content-Length"] = length
            await self._sender.pass_through(call, downstream)
            return
        incoming = await read_body(request, self._settings.listen.max_body_bytes)
        call = _make_call(admission, incoming.raw)
        try:
            turn = await self._reception.receive(admission, incoming.plain)
        except Unreadable:
            await self._sender.pass_through(call, downstream)
            return
        downstream.set_streaming(is_streaming=turn.received.body.envelope.is_streaming)
        plan = await self._preparation.plan(turn, downstream)
        await self._sender.send(turn, plan, call, downstream, partial(self._preparation.observe, turn, plan))


class Preparation:
    """What comes before and after the exchange: a plan, and what is learned from the answer."""

    def __init__(self, settings: Settings, planner: Planner, compactor: Compactor) -> None:
        self._shows_headers = settings.response_headers
        self._planner = planner
        self._compactor = compactor

    async def plan(self, turn: Turn, downstream: Downstream) -> Plan:
        """At once below the lines; measured near them, after the compactions that it cannot do without."""
        self._compactor.resume(turn)
        return self._planner.read_plan(turn) or await self._plan_measured(turn, downstream)

    def observe(self, turn: Turn, plan: Plan, outcome: Outcome) -> None:
        """One plain call; nothing is awaited any more."""
        reading = outcome.reading
        is_told = reading.usage is not None or reading.is_complete
        if 200 <= outcome.status < 300 and is_told and not reading.has_error:
            self._compactor.observe(turn, plan, reading.usage)

    async def _plan_measured(self, turn: Turn, downstream: Downstream) -> Plan:
        may_compact = self._compactor.may_ask(turn)
        for attempt in range(_MOST_COMPACTIONS + 1):
            situation = await self._planner.gather(turn, may_compact=may_compact)
            running = self._compactor.find_running(turn.owner, turn.received.conversation)
            decision = decide(replace(situation, is_preparing=running is not None))
            if isinstance(decision, Plan):
                return decision
            task = self._compactor.start(turn, decision.cut, "hard line")
            headers = {"x-gateway-conversation": turn.conversation} if self._shows_headers else {}
            done = await downstream.wait_for(task, headers)
            is_ready = not done.cancelled() and done.exception() is None and done.result()
            may_compact = is_ready and attempt + 1 < _MOST_COMPACTIONS
        raise AssertionError("a plan without compaction is always possible")


def _make_call(admission: Admission, body: Body) -> Call:
    return Call(
        upstream=admission.upstream,
        method=admission.method,
        url=admission.url,
        headers=admission.headers,
        body=body,
    )


async def _refuse(
    request: web.BaseRequest, downstream: Downstream, error: RequestRefused
) -> web.StreamResponse:
    """An error of ours, in the client's wire format; after a keep-alive as its stream takes it; in the
    middle of an answer there is only the broken connection.
    """
    body = render_error(request.path, error)
    if downstream.answer is not None:
        if downstream.is_committed:
            await downstream.fail(body, error.status)
        else:
            downstream.abort()
        return downstream.answer
    return web.Response(status=error.status, body=body, content_type="application/json")
