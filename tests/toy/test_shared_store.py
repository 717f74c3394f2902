"""The toy itself: what one connection does, and when another sees it. Its records: see tests/store."""

import asyncio

from gateway.store.leases import Held, Lease
from tests.store.clock import Clock
from tests.toy.shared_store import SharedStore, ToyServer


async def connect_two(server: ToyServer) -> tuple[SharedStore, SharedStore]:
    one, other = server.connect(), server.connect()
    await one.open()
    await other.open()
    return one, other


async def hold(store: SharedStore, key: str = "lease:1") -> Lease:
    lease = await store.leases.claim(key, (), keep_seconds=6)
    assert isinstance(lease, Lease)
    return lease


async def test_another_connection_sees_a_queued_write_later_and_a_durable_one_at_once() -> None:
    one, other = await connect_two(ToyServer())
    one.write("head:1", b"1", keep_seconds=60)
    assert await one.read("head:1") == b"1"
    await one.write_durably("pivot:1", b"p", keep_seconds=60)
    assert (await other.read("head:1"), await other.read("pivot:1")) == (b"1", b"p")


async def test_a_lease_excludes_others_and_its_rivals() -> None:
    one, other = await connect_two(ToyServer())
    lease = await hold(one)
    for key, rivals in (("lease:1", []), ("lease:2", ["lease:3", "lease:1"])):
        held = await other.leases.claim(key, rivals, keep_seconds=6)
        assert isinstance(held, Held) and (held.key, held.fence) == ("lease:1", lease.fence)
    await hold(other, "lease:2")


async def test_a_release_wakes_those_who_wait() -> None:
    one, other = await connect_two(server := ToyServer())
    lease = await hold(one)
    held = await other.leases.claim("lease:1", (), keep_seconds=6)
    assert isinstance(held, Held)
    waiting = asyncio.create_task(other.leases.wait(held))
    while not server.count_waiting():
        await asyncio.sleep(0)
    await one.leases.release(lease)
    await waiting
    assert (await hold(other)).fence > lease.fence
    await other.leases.wait(held)  # That one is gone: at once.


async def test_a_lease_whose_time_is_over_writes_nothing() -> None:
    clock = Clock()
    one, other = await connect_two(ToyServer(clock))
    lease = await hold(one)
    clock.now += 5
    assert await one.leases.renew(lease, keep_seconds=6)
    clock.now += 5
    assert isinstance(await other.leases.claim("lease:1", (), keep_seconds=6), Held)
    clock.now += 2
    later = await hold(other)
    assert not await one.leases.write(lease, "pivot:1", b"late", keep_seconds=60)
    assert not await one.leases.renew(lease, keep_seconds=6)
    assert await other.leases.write(later, "pivot:1", b"p", keep_seconds=60)
    assert await one.read("pivot:1") == b"p"


async def test_news_reaches_the_others_only() -> None:
    one, other = await connect_two(ToyServer())
    heard: list[tuple[str, str]] = []
    one.news.subscribe(lambda tag, text: heard.append(("one", text)))
    other.news.subscribe(lambda tag, text: heard.append((tag, text)))
    one.news.announce("tag", "pivot 1")
    await asyncio.sleep(0)
    assert heard == [("tag", "pivot 1")]


async def test_a_connection_that_is_cut_goes_on_alone() -> None:
    one, other = await connect_two(ToyServer())
    await other.write_durably("pivot:1", b"theirs", keep_seconds=60)
    one.cut()
    lease = await hold(one)
    assert lease.fence == 0 and await one.leases.renew(lease, keep_seconds=6)
    for key in ("pivot:1", "pivot:2"):
        assert await one.leases.write(lease, key, b"ours", keep_seconds=60)
    assert (await one.read("pivot:1"), await other.read("pivot:2")) == (b"ours", None)
    await one.mend()
    assert (await one.read("pivot:1"), await other.read("pivot:2")) == (b"theirs", b"ours")
    assert one.news.generation == 1
