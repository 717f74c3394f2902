"""Requests and responses of small ASGI applications."""

import asyncio

import pytest

from gateway.mcp.exchange import AsgiMessage, AsgiResponse, Receive, Send, choose_headers, run_application
from tests.builders.mcp import JSON_HEADERS, make_mcp_head

_HEAD = make_mcp_head({**JSON_HEADERS, "Authorization": "Bearer sk-a", "Cookie": "a", "Mcp-Method": "ping"})


async def test_an_application_gets_the_body_and_its_pieces_are_joined() -> None:
    async def echo(scope: AsgiMessage, receive: Receive, send: Send) -> None:
        message = await receive()
        assert not message["more_body"] and scope["path"] == "/mcp"
        await send({"type": "http.response.start", "status": 418, "headers": [(b"content-type", b"text/x")]})
        await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        await send({"type": "http.response.body", "body": b"!"})

    assert await run_application(echo, _HEAD, b"tea") == AsgiResponse(418, "text/x", b"tea!")


async def test_an_application_sees_no_credential() -> None:
    assert choose_headers(_HEAD.raw_headers) == [
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"mcp-method", b"ping"),
    ]


async def test_an_application_that_waits_for_the_client_ends_with_the_request() -> None:
    ended = asyncio.Event()

    async def wait(_: AsgiMessage, receive: Receive, __: Send) -> None:
        try:
            await receive()
            await receive()
        finally:
            ended.set()

    task = asyncio.create_task(run_application(wait, _HEAD, b""))
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_an_application_that_says_nothing_is_a_fault() -> None:
    async def say_nothing(_: AsgiMessage, __: Receive, ___: Send) -> None:
        return

    with pytest.raises(RuntimeError, match="has not responded"):
        await run_application(say_nothing, _HEAD, b"")
