"""Calls models for summaries: without tools and streamed, or with the body of the conversation's own request.
Chooses the model.

The usage of these calls never triggers a compaction.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from gateway.conversations.turn import Turn
from gateway.core.compaction.summary import Candidate
from gateway.core.compaction.summary_model import choose_summary_model
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.refusal.overflow import Overflow, parse_overflow
from gateway.core.sizing.usage import Usage
from gateway.headers import make_internal_headers
from gateway.http.client import Client, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure
from gateway.limits.book import ServedModel
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.settings import UpstreamSettings
from gateway.wire.content_encoding import DecodeError, decode_body
from gateway.wire.format import Format, SummaryRequest
from gateway.wire.reader import SummaryReader
from gateway.wire.refusal import MODEL_ERROR_STATUSES, is_model_unknown, parse_refusal

log = logging.getLogger("gateway.summary_models")

_MAY_BE_TOO_LONG: Final = (400, 413, 422)
# An error response says what is wrong at its beginning.
_MAX_ERROR_BYTES: Final = 1 << 16
# An upstream may get new models; asking again costs one refused call.
_FORGET_SECONDS: Final = 3_600.0
_UNKNOWN_BYTES: Final = 1 << 20
_UNKNOWN_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 250


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
    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, call: SummaryCall) -> SummaryReply:
        """Makes one call. Raises PromptRefused if the prompt was too long, ModelUnknown if upstream does not
        serve the model, CallTimedOut if no reply came in time, UpstreamFailed for any other error.
        """
        body = call.riding
        if body is None:
            body = call.format.render_summary_request(call.request)
        try:
            return await self._exchange(call, body)
        except TimeoutError as error:
            raise CallTimedOut(describe_failure(error, call.url)) from error
        except CALL_ERRORS as error:
            raise UpstreamFailed(describe_failure(error, call.url)) from error

    async def _exchange(self, call: SummaryCall, body: bytes) -> SummaryReply:
        headers = make_internal_headers(call.headers)
        headers += [("Content-Type", "application/json"), ("Accept", _choose_accept(call))]
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


def _choose_accept(call: SummaryCall) -> str:
    """Whether a body that rides asks for a stream, its client has chosen."""
    return "text/event-stream" if call.riding is None else "text/event-stream, application/json"


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


class SummaryModels:
    """Chooses the model for a summary and remembers models that an upstream does not serve.

    clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Each model here counts as unknown until the time beside it.
        self._unknown: Lru[ServedModel, float] = Lru(_UNKNOWN_BYTES)

    def choose(self, turn: Turn, upstream: str) -> ServedModel:
        chosen = ServedModel(turn.owner, upstream, choose_summary_model(turn.policy.summary, turn.model))
        is_unknown = self._clock() < (self._unknown.get(chosen) or 0.0)
        return chosen._replace(model=turn.model) if is_unknown else chosen

    def note_unknown(self, turn: Turn, unknown: ServedModel) -> bool:
        """True if another model is to be asked now. A model that the policy names is never replaced."""
        if unknown.model == turn.model or turn.policy.summary.model is not None:
            return False
        weight = _UNKNOWN_WEIGHT_BYTES + weigh_texts(unknown.model)
        self._unknown.put(unknown, self._clock() + _FORGET_SECONDS, weight)
        log.info(
            "summary model %s is unknown at %s: asking the conversation's own",
            unknown.model,
            unknown.upstream,
        )
        return True
