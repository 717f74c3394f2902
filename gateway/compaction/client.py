"""One call for a summary through the process's one client: budget, metrics, span, HTTP, reading.

Calls go without tools and streamed, or with the body of the conversation's own request. What a tenant may use
in an hour bounds them; retries are calls, too. Their usage never triggers a compaction.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import aiohttp

from gateway.core.compaction.cut import Cut
from gateway.core.compaction.summary import Candidate
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.refusal import Overflow, parse_overflow
from gateway.core.sizing.usage import Usage
from gateway.headers import make_internal_headers
from gateway.http.client import Client, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure
from gateway.limits.book import ServedModel
from gateway.reporting.metrics import Metrics
from gateway.settings import UpstreamSettings
from gateway.tenants import Tenant
from gateway.tenants.budget import SummaryBudget
from gateway.wire.content_encoding import DecodeError, decode_body
from gateway.wire.format import Format, SummaryRequest
from gateway.wire.reader import SummaryReader
from gateway.wire.refusal import MODEL_ERROR_STATUSES, is_model_unknown, parse_refusal

if TYPE_CHECKING:
    from gateway.traces import Tracer

_MAY_BE_TOO_LONG: Final = (400, 413, 422)
# An error response says what is wrong at its beginning.
_MAX_ERROR_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryCall:
    """What to ask, and where. The URL's query may hold secrets of the upstream's settings."""

    upstream: UpstreamSettings
    format: Format
    url: str = field(repr=False)
    headers: Sequence[tuple[str, str]] = field(repr=False)
    request: SummaryRequest
    timeout_seconds: float
    # The whole body, if the call rides on the conversation's own request; its last message says what
    # `request` does.
    riding: bytes | None = None


@dataclass(frozen=True, slots=True)
class FittedCall:
    """A call whose prompt fits the summarizer's window."""

    call: SummaryCall
    # The messages that it covers, and what they say.
    cut: Cut
    entries: Sequence[TranscriptEntry]
    # The size of the prompt: estimated with a margin, and by our own count.
    prompt_tokens: int
    raw_tokens: int
    # The model that counts them.
    model: ServedModel

    @property
    def is_riding(self) -> bool:
        """Its prompt is that of the conversation's own request, which is read from the cache, and a message.

        The raw tokens are those of the message alone.
        """
        return self.call.riding is not None


@dataclass(frozen=True, slots=True)
class SummaryReply:
    candidate: Candidate
    # As upstream counted it; None if it did not say. It sizes the next call, and counts for the tenant's
    # budget of summaries. No client sees it.
    usage: Usage | None


class CallTimedOut(UpstreamFailed):
    """No reply came in time. The model may have worked until then."""


class CallRefused(UpstreamFailed):
    """The upstream responded with an error, so no model has worked."""


class PromptRefused(CallRefused):
    """overflow: what the error says about the window; None if it is not about the window."""

    def __init__(self, reason: str, overflow: Overflow | None) -> None:
        super().__init__(reason)
        self.overflow = overflow


class SummaryClient:
    """tracer: None where traces are off."""

    def __init__(
        self, client: Client, budget: SummaryBudget, metrics: Metrics, tracer: "Tracer | None" = None
    ) -> None:
        self._client = client
        self._budget = budget
        self._metrics = metrics
        self._tracer = tracer

    def is_over_budget(self, tenant: Tenant) -> bool:
        """Whether the next call would not be made, as far as this process knows."""
        return self._budget.is_spent(tenant)

    async def ask(self, tenant: Tenant, fitted: FittedCall) -> SummaryReply | None:
        """None if the budget has no room for the call.

        Raises PromptRefused if the prompt was too long, ModelUnknown if upstream does not serve the model,
        CallTimedOut if no reply came in time, UpstreamFailed for any other error.
        """
        # Where there is no room for a riding call, there may be room for the quoted one that replaces it, so
        # no summary is missing yet.
        spend = self._budget.spend_if_room if fitted.is_riding else self._budget.spend
        expense = await spend(tenant, fitted.prompt_tokens)
        if expense is None:
            return None
        begun_seconds, result, usage = time.monotonic(), "cancelled", None
        try:
            reply = await self._ask_traced(fitted)
            result, usage = "done", reply.usage
        except UpstreamFailed as error:
            result = "failed"
            if isinstance(error, CallRefused | ModelUnknown):
                # No model has read the prompt. After any other failure it may have.
                self._budget.settle(expense, 0)
            raise
        finally:
            seconds = time.monotonic() - begun_seconds
            self._metrics.note_summary_call(
                result, usage, seconds, "riding" if fitted.is_riding else "quoted"
            )
        if usage is not None:
            self._budget.settle(expense, usage.total)
        return reply

    async def _ask_traced(self, fitted: FittedCall) -> SummaryReply:
        if self._tracer is None:
            return await self._send(fitted.call)
        call, model = fitted.call, fitted.model
        with self._tracer.summary_call(model.model, call.url, model.upstream) as span:
            headers = self._tracer.with_carried(call.headers, span)
            reply = await self._send(replace(call, headers=headers))
            usage, reason = reply.usage, reply.candidate.finish_reason
            self._tracer.describe(
                span,
                input_tokens=usage.prompt_tokens if usage is not None else None,
                output_tokens=usage.output_tokens if usage is not None else None,
                finish_reasons=(reason,) if reason is not None else None,
            )
            return reply

    async def _send(self, call: SummaryCall) -> SummaryReply:
        try:
            return await self._exchange(call)
        except TimeoutError as error:
            raise CallTimedOut(describe_failure(error, call.url)) from error
        except CALL_ERRORS as error:
            raise UpstreamFailed(describe_failure(error, call.url)) from error

    async def _exchange(self, call: SummaryCall) -> SummaryReply:
        body, accept = call.riding, "text/event-stream, application/json"
        if body is None:
            # Whether a body that rides asks for a stream, its client has chosen.
            body, accept = call.format.render_summary_request(call.request), "text/event-stream"
        headers = make_internal_headers(call.headers)
        headers += [("Content-Type", "application/json"), ("Accept", accept)]
        sent = OwnCall(call.upstream, "POST", call.url, headers, body)
        async with self._client.stream(sent, call.timeout_seconds) as response:
            if response.status != 200:
                raise await _read_failure(response, call.request.model)
            reader = SummaryReader(*_describe(response))
            # Not decoded by the library, which has no bound for what a few bytes decode to.
            async for chunk in response.content.iter_any():
                reader.feed(chunk)
                while reader.is_behind:
                    reader.catch_up()
                    await asyncio.sleep(0)
                if reader.is_over:
                    break
        read = reader.finish()
        candidate = Candidate(
            text=read.text,
            finish_reason=read.finish_reason,
            has_tool_calls=read.has_tool_calls,
            has_error=read.has_error or not read.is_complete,
        )
        return SummaryReply(candidate, read.usage)


def _describe(response: aiohttp.ClientResponse) -> tuple[str, str]:
    """Content type and content encoding."""
    headers = response.headers
    return headers.get("content-type", ""), headers.get("content-encoding", "")


async def _read_failure(response: aiohttp.ClientResponse, model: str) -> UpstreamFailed:
    """Reasons hold only the status, because an error's text may quote the conversation."""
    status = response.status
    reason = f"status {status}"
    if status not in MODEL_ERROR_STATUSES and status not in _MAY_BE_TOO_LONG:
        return CallRefused(reason)
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_ERROR_BYTES:
            break
    with suppress(DecodeError):
        body = decode_body(body, _describe(response)[1], _MAX_ERROR_BYTES)
    if is_model_unknown(status, body, model):
        return ModelUnknown(reason)
    if status not in _MAY_BE_TOO_LONG:
        return CallRefused(reason)
    refusal = parse_refusal(status, body)
    return PromptRefused(reason, parse_overflow(refusal) if refusal is not None else None)
