"""No request leaves a socket behind: not one that was cancelled while connecting, nor one that failed."""

import asyncio
import os
from contextlib import suppress

import pytest

from gateway.core.errors import UpstreamFailed
from gateway.upstream.response import UpstreamResponse
from tests.builders.upstream import requesting
from tests.toy.running import wait_until
from tests.wire_through.raw import Ending, RawUpstream, render_answer, writing

REQUESTS = 100
CUT = render_answer()[:-1]


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def cancel_after(task: "asyncio.Task[UpstreamResponse]", turns: int) -> None:
    """turns: of the event loop. With each the task comes a little further."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(UpstreamFailed, asyncio.CancelledError):
        await task


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_requests_that_are_cancelled_while_connecting_leave_no_socket(scheme: str) -> None:
    """Over TLS the handshake never ends, because the upstream is silent."""
    async with RawUpstream(writing(then="hang")) as raw:
        url = raw.base_url.replace("http", scheme, 1)
        async with requesting(url) as requester:
            before = count_descriptors()
            for turns in range(REQUESTS):
                await cancel_after(asyncio.create_task(requester.request()), turns % 20)
            await raw.hang_up()
            await wait_until(lambda: count_descriptors() <= before)


@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 101 Odd\r\n\r\n", b"no HTTP\r\n\r\n", render_answer()[:-1]]
)
async def test_requests_that_fail_leave_no_socket(answer: bytes, ending: Ending) -> None:
    async with RawUpstream(writing(answer, then=ending)) as raw, requesting(raw.base_url) as requester:
        before = count_descriptors()
        for _ in range(REQUESTS // 4):
            with pytest.raises(UpstreamFailed):
                await (await requester.request()).read_bounded(1 << 20)
            requester.idle.close_response()
        await wait_until(lambda: count_descriptors() <= before)
