"""A client that reads nothing of what it was sent, over a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from gateway.downstream.unread import UnreadBytes

# More than the system takes at once.
_MUCH = b"x" * (1 << 24)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@asynccontextmanager
async def open_line(ours: socket.socket) -> AsyncIterator[asyncio.Transport]:
    line, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    yield line
    line.abort()


async def test_the_time_runs_while_the_client_reads_nothing(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    unread = UnreadBytes()
    async with open_line(pair[0]) as line:
        assert unread.count_seconds(line, 5, may_grow=False) == 0
        line.write(_MUCH)
        seconds = [unread.count_seconds(line, now, may_grow=False) for now in (10, 40, 80)]
        assert seconds == [0, 30, 70]


async def test_the_time_begins_again_with_each_read(pair: tuple[socket.socket, socket.socket]) -> None:
    unread = UnreadBytes()
    async with open_line(pair[0]) as line:
        line.write(_MUCH)
        assert unread.count_seconds(line, 10, may_grow=False) == 0
        before = line.get_write_buffer_size()
        while line.get_write_buffer_size() == before:
            pair[1].recv(1 << 16)
            await asyncio.sleep(0)
        assert unread.count_seconds(line, 70, may_grow=False) == 0


async def test_nothing_is_told_of_a_client_whose_response_grows(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    unread = UnreadBytes()
    async with open_line(pair[0]) as line:
        line.write(_MUCH)
        assert [unread.count_seconds(line, now, may_grow=True) for now in (10, 80)] == [0, 0]
        assert unread.count_seconds(line, 90, may_grow=False) == 10
