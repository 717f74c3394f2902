"""The way of one request: wire -> identity -> plan -> rewrite -> upstream -> usage -> compaction.

Awaits only what downstream is waiting for. Decides nothing itself.
"""

import logging
from typing import NamedTuple

from aiohttp import hdrs

from gateway.core.errors import RequestRefused, Unreadable, UpstreamFailed, UpstreamStalled
from gateway.downstream.request import Request, read_body, stream_body
from gateway.downstream.responder import Responder
from gateway.downstream.response import Response, send_local_response
from gateway.pipeline.admission import Admission
from gateway.pipeline.commands import Commands
from gateway.pipeline.count_tokens import CountTokens
from gateway.pipeline.overflow_retry import OverflowRetry
from gateway.pipeline.sender import Sender
from gateway.pipeline.turns import TurnBuilder
from gateway.settings import Settings
from gateway.upstream.client import UpstreamCall
from gateway.wire.formats.registry import render_error

log = logging.getLogger("gateway.proxy")


class Ways(NamedTuple):
    """How a request may be answered: by ourselves, by upstream as planned, or as a relay."""

    commands: Commands
    counting: CountTokens
    recovery: OverflowRetry
    sender: Sender


class Proxy:
    def __init__(
        self,
        settings: Settings,
        entrance: Admission,
        reception: TurnBuilder,
        ways: Ways,
    ) -> None:
        self._settings = settings
        self._entrance = entrance
        self._reception = reception
        self._commands, self._counting, self._recovery, self._sender = ways

    async def answer(self, request: Request) -> Response | None:
        """Every request of the data port ends here. Raises ConnectionError where downstream hung up, and
        nothing else but a cancelled handler.
        """
        downstream = Responder(request, self._settings.keepalive)
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
            raise
        except Exception:
            # The one edge: whatever we got wrong must end as an answer, not as a silent connection.
            log.exception("request failed inside the gateway")
            failure = RequestRefused(500, "The gateway failed on this request.", kind="server_error")
            return await _refuse(request, downstream, failure)
        return downstream.response

    async def _carry(self, request: Request, downstream: Responder) -> None:
        admission = self._entrance.admit(request.head)
        if admission.form is None:
            head, body = admission.head, stream_body(request)
            if request.length is not None and not isinstance(body, bytes):
                head = head.with_header(hdrs.CONTENT_LENGTH, str(request.length))
            call = UpstreamCall(admission.upstream, head, body)
            await self._sender.pass_through(call, downstream)
            return
        max_bytes = self._settings.listen.max_body_bytes
        incoming = await read_body(request, max_bytes)
        call = UpstreamCall(admission.upstream, admission.head, incoming.raw)
        if admission.is_count:
            call = await self._counting.rewrite(admission, admission.form, call, incoming.plain)
            await self._sender.pass_through(call, downstream)
            return
        try:
            turn = await self._reception.receive(admission, admission.form, incoming.plain)
        except Unreadable:
            await self._sender.pass_through(call, downstream)
            return
        downstream.set_format(admission.form, is_streaming=turn.received.body.envelope.is_streaming)
        if turn.command is not None:
            await self._commands.carry(turn, turn.command, downstream)
            return
        await self._recovery.carry(turn, call, downstream)


async def _refuse(request: Request, downstream: Responder, error: RequestRefused) -> Response | None:
    """An error of ours, in the client's wire format; after a keep-alive as its stream takes it; in the
    middle of an answer there is only the broken connection.
    """
    body = render_error(request.head.target, error)
    if downstream.response is not None:
        if downstream.is_committed:
            await downstream.fail(body, error.status)
        else:
            downstream.abort()
        return downstream.response
    return send_local_response(request, error.status, body)
