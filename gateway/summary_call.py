"""One call of our own: asks a model for a summary, without tools, streamed, and reads what it says.

Knows where to ask and what, not why. Its usage is nobody's business: it never reaches a trigger.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpx2 as httpx

from gateway.core.errors import UpstreamFailed
from gateway.core.summary import Answer
from gateway.wire.chat_summary import SummaryRequest, render_summary_request
from gateway.wire.summary_answer import SummaryReader

# End-to-end headers that belong to the client's own request and not to one of ours.
_DROPPED: Final = frozenset(
    {
        *("accept", "accept-encoding", "content-type", "content-encoding", "content-length", "host"),
        *("idempotency-key", "x-idempotency-key", "if-match", "if-none-match", "range"),
    }
)


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
    def __init__(self) -> None:
        # A cookie of one tenant must never be sent for another: this jar takes none.
        jar = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
        self._client = httpx.AsyncClient(follow_redirects=False, trust_env=False, cookies=jar)

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, assignment: Assignment) -> Answer:
        """One call. Raises UpstreamFailed where no answer came, or none within the time allowed."""
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
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError) as error:
            raise UpstreamFailed(type(error).__name__) from error

    async def _exchange(self, assignment: Assignment, body: bytes) -> Answer:
        headers = [
            (name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape"))
            for name, value in assignment.headers
            if name.lower() not in _DROPPED
        ]
        headers += [(b"Content-Type", b"application/json"), (b"Accept", b"text/event-stream")]
        request = self._client.build_request(
            "POST", assignment.url, content=body, headers=headers, timeout=assignment.timeout_seconds
        )
        response = await self._client.send(request, stream=True)
        try:
            if response.status_code != 200:
                # The number only: an error's text may quote the conversation.
                raise UpstreamFailed(f"status {response.status_code}")
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
