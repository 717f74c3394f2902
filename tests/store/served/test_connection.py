"""Replies find their calls, whatever is cancelled, slow or gone."""

import asyncio
import random
import socket

import pytest

from gateway.store import StoreError
from gateway.store.leases import Held, Lease
from gateway.store.served.calls import BarrierCall, WriteCall, parse_calls
from gateway.store.served.connection import StoreConnection
from gateway.store.served.served_store import ServedStore
from tests.store.served.serving import serving
from tests.toy.running import wait_until


async def test_no_call_gets_the_reply_of_another_whatever_is_cancelled() -> None:
    draw = random.Random(5)
    async with serving() as served:
        store = await served.connect()
        for number in range(200):
            store.write(f"head:{number}", b"%d" % number, keep_seconds=60)
        for _ in range(60):
            await read_some(store, draw)


async def read_some(store: ServedStore, draw: random.Random) -> None:
    """Reads at once, of which some are cancelled at a drawn moment."""
    chosen = [draw.randrange(200) for _ in range(40)]
    reads = [asyncio.create_task(store.read(f"head:{number}")) for number in chosen]
    for _ in range(draw.randrange(3)):
        await asyncio.sleep(0)
    for read in reads:
        if draw.random() < 0.4:
            read.cancel()
    found = await asyncio.gather(*reads, return_exceptions=True)
    whole = [each for each in zip(chosen, found, strict=True) if not isinstance(each[1], BaseException)]
    assert whole == [(number, b"%d" % number) for number, _ in whole]


async def test_without_its_server_a_worker_reads_nothing_and_is_alone() -> None:
    async with serving() as served:
        store = await served.connect()
        await store.write_durably("head:1", b"1", keep_seconds=60)
        reading = asyncio.create_task(store.leases.wait(Held("lease:1", 1, 60)))
        await served.server.close()
        await reading
        await wait_until(lambda: not served.connections[0].is_open)
        assert await store.read("head:1") is None
        assert await store.scan("head:") == []
        assert await store.take("head:1") is None
        store.write("head:1", b"2", keep_seconds=60)
        for failing in (store.write_durably, store.write_new):
            with pytest.raises(StoreError, match="cannot be reached"):
                await failing("head:1", b"2", keep_seconds=60)
        lease = await store.leases.claim("lease:1", [], keep_seconds=6)
        assert lease == Lease("lease:1", 0)
        assert await store.leases.renew(lease, keep_seconds=6)
        await store.leases.release(lease)


async def test_calls_of_one_moment_leave_together() -> None:
    ours, theirs = socket.socketpair()
    connection = StoreConnection(ours)
    await connection.open()
    for number in range(3):
        connection.tell(WriteCall("main", f"head:{number}", b"1", 60.0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    data = theirs.recv(1 << 16)
    size = int.from_bytes(data[:4], "big")
    assert len(data) == size + 4
    assert len(parse_calls(data[4:])) == 3
    connection.close()
    theirs.close()
    await asyncio.sleep(0)


async def test_a_call_does_not_wait_for_a_server_that_is_stuck() -> None:
    ours, theirs = socket.socketpair()
    connection = StoreConnection(ours)
    await connection.open()
    with pytest.raises(StoreError, match="did not answer in time"):
        await connection.ask(BarrierCall, 0.01)
    connection.close()
    theirs.close()
    await asyncio.sleep(0)


async def test_what_waits_for_a_server_that_is_stuck_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair()
    connection = StoreConnection(ours)
    await connection.open()
    value = b"x" * (8 << 20)
    for number in range(20):
        connection.tell(WriteCall("main", f"head:{number}", value, 60.0), len(value))
        await asyncio.sleep(0)
    assert caplog.text.count("writes are dropped") == 1
    with pytest.raises(StoreError, match="too much is waiting"):
        await connection.ask(BarrierCall, 60, len(value))
    theirs.close()
    await wait_until(lambda: not connection.is_open)
