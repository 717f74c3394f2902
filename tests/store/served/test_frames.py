"""Messages arrive whole and in order, however the stream cuts them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.store.served.frames import MessageLine, open_line
from tests.toy.running import wait_until


class Side:
    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.losses = 0

    def lose(self) -> None:
        self.losses += 1


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[MessageLine, MessageLine, Side, Side]]:
    first, second = socket.socketpair()
    one, other = Side(), Side()
    left = await open_line(first, one.received.append, one.lose)
    right = await open_line(second, other.received.append, other.lose)
    try:
        yield left, right, one, other
    finally:
        left.close()
        right.close()
        await wait_until(lambda: left.is_lost and right.is_lost)


async def test_messages_arrive_in_order_and_in_both_directions() -> None:
    async with connected() as (left, right, one, other):
        messages = [b"", b"a", b"b" * 300_000, b"c"]
        for message in messages:
            left.send(message)
        right.send(b"back")
        await wait_until(lambda: other.received == messages and one.received == [b"back"])


async def test_a_message_that_comes_byte_by_byte_is_taken_once() -> None:
    ours, theirs = socket.socketpair()
    side = Side()
    line = await open_line(ours, side.received.append, side.lose)
    for number in b"\x00\x00\x00\x02ab\x00\x00\x00\x01":
        theirs.send(bytes([number]))
        await asyncio.sleep(0)
    theirs.send(b"c")
    await wait_until(lambda: side.received == [b"ab", b"c"])
    theirs.close()
    await wait_until(lambda: line.is_lost)


async def test_the_end_of_the_other_side_is_noticed_once() -> None:
    async with connected() as (left, right, _, other):
        left.send(b"last")
        left.close()
        await wait_until(lambda: other.losses == 1)
        assert other.received == [b"last"]
        right.send(b"into nothing")
        assert right.is_lost


async def test_an_absurd_length_ends_the_connection() -> None:
    ours, theirs = socket.socketpair()
    side = Side()
    line = await open_line(ours, side.received.append, side.lose)
    theirs.send(b"\xff\xff\xff\xff")
    await wait_until(lambda: line.is_lost)
    assert side.received == []
    theirs.close()


async def test_what_the_other_side_has_not_taken_is_known() -> None:
    ours, theirs = socket.socketpair()
    line = await open_line(ours, Side().received.append, Side().lose)
    line.send(b"x" * 5_000_000)
    assert line.unsent_bytes > 1_000_000
    theirs.close()
    await wait_until(lambda: line.is_lost)
