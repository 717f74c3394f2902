"""One call of our own: asks a model for a summary, without tools, streamed, and reads what it says.

Knows where to ask and what, not why. Its usage is nobody's business: it never reaches a trigger.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2 as httpx

from gateway.core.errors import ModelUnknown, UpstreamFailed
from gateway.core.summary import Answer
from gateway.own_call import CALL_ERRORS, make_own_headers
from gateway.wire.chat_summary import SummaryRequest, render_summary_request
from gateway.wire.model_refusal import STATUSES, is_model_unknown
from gateway.wire.summary_answer import SummaryReader

# Of an error answer: what it says stands at its beginning.
_ERROR_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What to ask, where. cap, room: tokens of the reply that is wanted, and that fits."""

    url: str
    headers: Sequence[tuple[str, str]]
    model: str
    system: str
    output_key: str
    parts: tuple[str, ...]
    cap: int
    room: int
    timeout_seconds: float


class SummaryClient:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, assignment: Assignment) -> Answer:
        """One call. Raises UpstreamFailed where no answer came, or none within the time allowed; ModelUnknown
        where upstream does not serve the model.
        """
        body = render_summary_request(
            SummaryRequest(
                model=assignment.model,
                system=assignment.system,
                parts=assignment.parts,
                output_key=assignment.output_key,
                cap=assignment.cap,
                room=assignment.room,
            )
        )
        try:
            async with asyncio.timeout(assignment.timeout_seconds):
                return await self._exchange(assignment, body)
        except CALL_ERRORS as error:
            raise UpstreamFailed(type(error).__name__) from error

    async def _exchange(self, assignment: Assignment, body: bytes) -> Answer:
        headers = make_own_headers(assignment.headers)
        headers += [(b"Content-Type", b"application/json"), (b"Accept", b"text/event-stream")]
        request = self._client.build_request(
            "POST", assignment.url, content=body, headers=headers, timeout=assignment.timeout_seconds
        )
        response = await self._client.send(request, stream=True)
        try:
            if response.status_code != 200:
                raise await _read_failure(response, assignment.model)
            reader = SummaryReader(response.headers.get("content-type", ""), "")
            async for chunk in response.aiter_bytes():
                reader.feed(chunk)
        finally:
            await response.aclose()
        read = reader.read()
        return Answer(
            text=read.text,
            finish_reason=read.finish_reason,
            has_tool_calls=read.has_tool_calls,
            has_error=read.has_error or not read.is_complete,
        )


async def _read_failure(response: httpx.Response, model: str) -> UpstreamFailed:
    """The number only: an error's text may quote the conversation."""
    status = response.status_code
    body = bytearray()
    if status in STATUSES:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) >= _ERROR_BYTES:
                break
    kind = ModelUnknown if is_model_unknown(status, bytes(body), model) else UpstreamFailed
    return kind(f"status {status}")
