"""One call of our own: asks a model for a summary, without tools, streamed, and reads what it says.

Knows where to ask and what, not why. Its usage is nobody's business: it never reaches a trigger.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import httpx2 as httpx

from gateway.conversations.turn import Turn
from gateway.core.compaction.summary import Candidate
from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.policy import Summary
from gateway.core.refusal.overflow import Overflow, parse_overflow
from gateway.upstream.internal_client import CALL_ERRORS, make_internal_headers
from gateway.wire.response.refusal import STATUSES, is_model_unknown, read_refusal
from gateway.wire.response.summary_reply import SummaryReader
from gateway.wire.wire_format import SummaryRequest, WireFormat

_MAY_BE_TOO_LONG: Final = (400, 413, 422)
# Of an error answer: what it says stands at its beginning.
_MOST_ERROR_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What to ask, and where."""

    form: WireFormat
    url: str
    headers: Sequence[tuple[str, str]]
    request: SummaryRequest
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """prompt_tokens: as upstream counted them, for the size of the next call; it reaches no trigger."""

    answer: Candidate
    prompt_tokens: int | None


class PromptRefused(UpstreamFailed):
    """overflow: what the refusal says of the window; None where it does not speak of it."""

    def __init__(self, reason: str, overflow: Overflow | None) -> None:
        super().__init__(reason)
        self.overflow = overflow


class SummaryClient:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, assignment: Assignment) -> SummaryReply:
        """One call. Raises UpstreamFailed where no answer came, or none in the time allowed; PromptRefused
        where the prompt was too long; ModelUnknown where upstream does not serve the model.
        """
        body = assignment.form.render_summary_request(assignment.request)
        try:
            async with asyncio.timeout(assignment.timeout_seconds):
                return await self._exchange(assignment, body)
        except CALL_ERRORS as error:
            raise UpstreamFailed(type(error).__name__) from error

    async def _exchange(self, assignment: Assignment, body: bytes) -> SummaryReply:
        headers = make_internal_headers(assignment.headers)
        headers += [(b"Content-Type", b"application/json"), (b"Accept", b"text/event-stream")]
        request = self._client.build_request(
            "POST", assignment.url, content=body, headers=headers, timeout=assignment.timeout_seconds
        )
        response = await self._client.send(request, stream=True)
        try:
            if response.status_code != 200:
                raise await _read_failure(response, assignment.request.model)
            reader = SummaryReader(
                assignment.form.find_reply_part, response.headers.get("content-type", ""), ""
            )
            async for chunk in response.aiter_bytes():
                reader.feed(chunk)
                if reader.is_over:
                    break
        finally:
            await response.aclose()
        read = reader.finish()
        answer = Candidate(
            text=read.text,
            finish_reason=read.finish_reason,
            has_tool_calls=read.has_tool_calls,
            has_error=read.has_error or not read.is_complete,
        )
        return SummaryReply(answer, read.usage.prompt_tokens if read.usage is not None else None)


async def _read_failure(response: httpx.Response, model: str) -> UpstreamFailed:
    """The number only: an error's text may quote the conversation."""
    status = response.status_code
    reason = f"status {status}"
    if status not in STATUSES and status not in _MAY_BE_TOO_LONG:
        return UpstreamFailed(reason)
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MOST_ERROR_BYTES:
            break
    if is_model_unknown(status, body, model):
        return ModelUnknown(reason)
    if status not in _MAY_BE_TOO_LONG:
        return UpstreamFailed(reason)
    refusal = read_refusal(status, body)
    return PromptRefused(reason, parse_overflow(refusal) if refusal is not None else None)


# JOINED: Which model summarises for a turn; remembers those that an upstream does not know.

log = logging.getLogger("gateway.summary_models")

# An upstream may get new models; asking once more costs one refused call.
_FORGET_SECONDS: Final = 3_600.0
_MOST_REMEMBERED: Final = 4_096


def choose_summary_model(summary: Summary, model: str) -> str:
    """The policy's own model, else that of the first pattern that fits, else the conversation's."""
    if summary.model is not None:
        return summary.model
    mapped = next((name for pattern, name in summary.model_map if fnmatchcase(model, pattern)), None)
    return mapped or model


class SummaryModels:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Tenant, upstream and model, with the time until which it counts as unknown: keys differ in what they
        # may use.
        self._unknown: dict[tuple[str, str, str], float] = {}

    def choose(self, turn: Turn, upstream: str) -> str:
        chosen = choose_summary_model(turn.policy.summary, turn.model)
        is_unknown = self._clock() < self._unknown.get((turn.owner, upstream, chosen), 0.0)
        return turn.model if is_unknown else chosen

    def note_unknown(self, turn: Turn, upstream: str, model: str) -> bool:
        """True where another one is to be asked now. What the policy names itself is never replaced."""
        if model == turn.model or turn.policy.summary.model is not None:
            return False
        if len(self._unknown) >= _MOST_REMEMBERED:
            self._unknown.clear()
        self._unknown[turn.owner, upstream, model] = self._clock() + _FORGET_SECONDS
        log.info("summary model %s is unknown at %s: asking the conversation's own", model, upstream)
        return True
