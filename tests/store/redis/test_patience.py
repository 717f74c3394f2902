"""Time that a server takes is counted; time in which the event loop was busy is not."""

import asyncio
import socket
import time

import pytest

from gateway.store.redis.patience import SLICES, Patience


async def test_what_takes_too_long_ends() -> None:
    with pytest.raises(TimeoutError):
        async with Patience(0.01):
            await asyncio.Event().wait()


async def test_what_is_quick_passes_no_slice() -> None:
    async with Patience(1_000) as patience:
        await asyncio.sleep(0)
    assert patience.passed == 0


async def test_a_reply_that_came_while_the_loop_was_busy_is_read() -> None:
    ours, theirs = _make_pair()
    reader, writer = await asyncio.open_connection(sock=ours)
    async with Patience(0.05) as patience:
        asyncio.get_running_loop().call_soon(_make_busy, 0.3)
        theirs.send(b"reply")
        assert await reader.readexactly(5) == b"reply"
    assert patience.passed < SLICES
    theirs.close()
    writer.close()


async def test_a_cancelled_caller_is_cancelled_and_not_late() -> None:
    async def wait() -> None:
        async with Patience(1_000):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def _make_busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def _make_pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


async def test_what_has_waited_before_waits_for_the_rest_only() -> None:
    with pytest.raises(TimeoutError):
        async with Patience(0.05, passed=SLICES) as patience:
            await asyncio.Event().wait()
    assert patience.passed_here == 1
