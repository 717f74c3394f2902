"""One request to an ASGI application, and its whole response.

The application sees the headers that the protocol has, and no credential.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, NamedTuple

from gateway.headers import RawHeaders
from gateway.http.request import RequestHead

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
Application = Callable[[AsgiMessage, Receive, Send], Awaitable[None]]

_PASSED: Final = frozenset({b"accept", b"content-type", b"last-event-id"})
_PASSED_PREFIX: Final = b"mcp-"


class AsgiResponse(NamedTuple):
    """content_type: empty if there is none."""

    status: int
    content_type: str
    body: bytes


async def run_application(application: Application, head: RequestHead, body: bytes) -> AsgiResponse:
    """If it is cancelled, the application is. Raises what the application raises."""
    requests = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[AsgiMessage] = []

    async def receive() -> AsgiMessage:
        if requests:
            return requests.pop()
        # The client's end is noticed outside, and cancels all of this.
        never: asyncio.Future[AsgiMessage] = asyncio.get_running_loop().create_future()
        return await never

    async def send(message: AsgiMessage) -> None:
        sent.append(message)

    await application(_make_scope(head), receive, send)
    return _join(sent)


def _make_scope(head: RequestHead) -> AsgiMessage:
    path, _, _ = head.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": head.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "root_path": "",
        "query_string": b"",
        "headers": choose_headers(head.raw_headers),
        "client": None,
        "server": None,
    }


def choose_headers(raw: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Names in lower case, as ASGI has them."""
    named = ((name.lower(), value) for name, value in raw)
    return [pair for pair in named if pair[0] in _PASSED or pair[0].startswith(_PASSED_PREFIX)]


def _join(sent: list[AsgiMessage]) -> AsgiResponse:
    """Raises RuntimeError for an application that has not responded."""
    if not sent:
        raise RuntimeError("the application has not responded")
    headers = dict(sent[0].get("headers", ()))
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    return AsgiResponse(sent[0]["status"], content_type, b"".join(each.get("body", b"") for each in sent[1:]))
