"""Several listeners on one socket: each connection reaches exactly one, and they get about as many each."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.downstream.shared_port import SharedPort, bind_port
from gateway.downstream.tally import Tally
from tests.toy.running import wait_until


class Taken(asyncio.Protocol):
    """The connections that one worker has taken."""

    def __init__(self, shared: SharedPort) -> None:
        self._shared = shared
        self.open: set[asyncio.BaseTransport] = set()

    def make(self) -> asyncio.Protocol:
        return _Line(self)

    def report(self) -> None:
        self._shared.note_count(len(self.open))


class _Line(asyncio.Protocol):
    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._taken.open.add(transport)
        self._taken.report()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._taken.open.discard(self._transport)
        self._taken.report()


class Workers:
    """Listeners in one process, each with a descriptor of its own, as processes have."""

    def __init__(self, listening: socket.socket, count: int) -> None:
        self.tally = Tally.create(count)
        self.ports = [SharedPort([listening.dup()], self.tally, worker) for worker in range(count)]
        self.taken = [Taken(port) for port in self.ports]
        for port, taken in zip(self.ports, self.taken, strict=True):
            port.open(taken.make)
            port.note_count(0)

    @property
    def counts(self) -> list[int]:
        return [len(taken.open) for taken in self.taken]

    def close(self) -> None:
        for port in self.ports:
            port.close()
        for taken in self.taken:
            for transport in taken.open:
                transport.close()


@asynccontextmanager
async def working(count: int) -> AsyncIterator[tuple[Workers, int]]:
    (listening,) = await bind_port("127.0.0.1", 0)
    workers = Workers(listening, count)
    try:
        yield workers, listening.getsockname()[1]
    finally:
        workers.close()
        listening.close()
        await wait_until(lambda: sum(workers.counts) == 0)
        workers.tally.close()


async def connect(port: int, count: int) -> list[asyncio.StreamWriter]:
    lines = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(count)))
    return [writer for _, writer in lines]


async def hang_up(lines: list[asyncio.StreamWriter]) -> None:
    for line in lines:
        line.close()
        await line.wait_closed()


async def test_a_burst_of_connections_is_spread_evenly() -> None:
    async with working(4) as (workers, port):
        lines = await connect(port, 80)
        await wait_until(lambda: sum(workers.counts) == 80)
        assert max(workers.counts) - min(workers.counts) <= 1
        await hang_up(lines)


async def test_new_connections_go_to_whoever_has_fewest() -> None:
    async with working(2) as (workers, port):
        workers.ports[1].note_count(30)
        lines = await connect(port, 20)
        await wait_until(lambda: sum(workers.counts) == 20)
        assert workers.counts == [20, 0]
        await hang_up(lines)


async def test_a_worker_that_does_not_answer_keeps_no_connection_waiting() -> None:
    async with working(2) as (workers, port):
        # By the tally the second one has fewest, but it does not look at the socket.
        workers.ports[1].close()
        workers.tally.write(1, 0)
        lines = await connect(port, 6)
        await wait_until(lambda: workers.counts == [6, 0])
        await hang_up(lines)


async def test_after_one_has_closed_the_others_go_on() -> None:
    async with working(2) as (workers, port):
        workers.ports[0].close()
        lines = await connect(port, 3)
        await wait_until(lambda: workers.counts == [0, 3])
        await hang_up(lines)


async def test_small_packets_are_not_held_back() -> None:
    async with working(1) as (workers, port):
        lines = await connect(port, 1)
        await wait_until(lambda: workers.counts == [1])
        (transport,) = workers.taken[0].open
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await hang_up(lines)


async def test_a_port_that_is_taken_is_refused() -> None:
    (listening,) = await bind_port("127.0.0.1", 0)
    with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        await bind_port("127.0.0.1", listening.getsockname()[1])
    listening.close()


async def test_a_host_of_several_addresses_has_one_port() -> None:
    sockets = await bind_port("localhost", 0)
    assert len({bound.getsockname()[1] for bound in sockets}) == 1
    for bound in sockets:
        bound.close()
