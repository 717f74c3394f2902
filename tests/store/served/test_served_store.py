"""Several workers of one store: what one writes the others read, and each lease has one holder.

What every store does is in tests/store/test_store.py.
"""

import asyncio
from pathlib import Path

import pytest

from gateway.store import StoreError
from gateway.store.disk import DiskStore
from gateway.store.errors import Unusable
from gateway.store.leases import Held, Lease
from gateway.store.memory import MemoryStore
from tests.store.served.serving import serving
from tests.toy.running import wait_until


async def test_what_one_worker_writes_another_reads() -> None:
    async with serving() as served:
        one, other = await served.connect(), await served.connect()
        one.write("head:1", b"1", keep_seconds=60)
        assert await one.read("head:1") == b"1"
        assert await other.read("head:1") == b"1"
        other.delete("head:1")
        assert await other.read("head:1") is None
        assert await one.read("head:1") is None


async def test_writes_of_one_worker_keep_their_order(tmp_path: Path) -> None:
    async with serving(DiskStore(tmp_path / "state", linger_seconds=0.01)) as served:
        store = await served.connect()
        first = asyncio.create_task(store.write_durably("head:1", b"1", keep_seconds=60))
        await asyncio.sleep(0)
        store.write("head:1", b"2", keep_seconds=60)
        await first
        assert await store.read("head:1") == b"2"
        store.delete("head:1")
        await store.write_durably("head:1", b"3", keep_seconds=60)
        assert await store.read("head:1") == b"3"


async def test_a_lease_has_one_holder_and_its_death_frees_it() -> None:
    async with serving() as served:
        one, other = await served.connect(), await served.connect()
        lease = await one.leases.claim("lease:1", [], keep_seconds=600)
        assert isinstance(lease, Lease)
        held = await other.leases.claim("lease:2", ["lease:1"], keep_seconds=600)
        assert isinstance(held, Held) and held.key == "lease:1"
        waiting = asyncio.create_task(other.leases.wait(held))
        # The worker is killed.
        served.connections[0].close()
        await asyncio.wait_for(waiting, 30)
        assert isinstance(await other.leases.claim("lease:2", ["lease:1"], keep_seconds=6), Lease)


async def test_a_release_wakes_those_who_wait() -> None:
    async with serving() as served:
        one, other = await served.connect(), await served.connect()
        lease = await one.leases.claim("lease:1", [], keep_seconds=600)
        held = await other.leases.claim("lease:1", [], keep_seconds=600)
        assert isinstance(lease, Lease) and isinstance(held, Held)
        waiting = asyncio.create_task(other.leases.wait(held))
        assert await one.leases.renew(lease, keep_seconds=600)
        await one.leases.release(lease)
        await asyncio.wait_for(waiting, 30)
        assert not await one.leases.renew(lease, keep_seconds=600)


async def test_who_lost_its_lease_writes_nothing() -> None:
    async with serving() as served:
        one, other = await served.connect(), await served.connect()
        lost = await one.leases.claim("lease:1", [], keep_seconds=600)
        assert isinstance(lost, Lease)
        assert await one.leases.write(lost, "pivot:1", b"1", keep_seconds=60)
        await one.leases.release(lost)
        now = await other.leases.claim("lease:1", [], keep_seconds=600)
        assert isinstance(now, Lease) and now.fence > lost.fence
        assert not await one.leases.write(lost, "pivot:1", b"late", keep_seconds=60)
        assert await other.leases.write(now, "pivot:1", b"2", keep_seconds=60)
        assert await one.read("pivot:1") == b"2"


async def test_a_claim_that_is_cancelled_holds_nothing() -> None:
    async with serving() as served:
        one, other = await served.connect(), await served.connect()
        claiming = asyncio.create_task(one.leases.claim("lease:1", [], keep_seconds=600))
        await asyncio.sleep(0)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)

        async def claim_until_granted() -> Lease:
            while True:
                granted = await other.leases.claim("lease:1", [], keep_seconds=600)
                if isinstance(granted, Lease):
                    return granted
                await other.leases.wait(granted)

        await asyncio.wait_for(claim_until_granted(), 30)


async def test_news_reach_the_other_workers_behind_what_they_are_about() -> None:
    async with serving() as served:
        one, other, third = [await served.connect() for _ in range(3)]
        heard: list[tuple[str, str, asyncio.Task[bytes | None]]] = []
        own: list[str] = []
        one.news.subscribe(lambda _, text: own.append(text))
        for store in (other, third):
            store.news.subscribe(
                lambda tag, text, store=store: heard.append(  # type: ignore[misc]
                    (tag, text, asyncio.ensure_future(store.read("pivot:1")))
                )
            )
        one.write("pivot:1", b"1", keep_seconds=60)
        one.news.announce("tag", "pivot 1")
        await wait_until(lambda: len(heard) == 2)
        assert [(tag, text, await found) for tag, text, found in heard] == [("tag", "pivot 1", b"1")] * 2
        assert own == []
        assert one.news.generation == 0


async def test_errors_of_the_store_are_those_of_the_server() -> None:
    async with serving(MemoryStore(max_bytes=1_000)) as served:
        store = await served.connect()
        with pytest.raises(StoreError, match="larger than the store"):
            await store.write_durably("head:1", b"x" * 2_000, keep_seconds=60)
        await served.stores.main.close()
        with pytest.raises(Unusable, match="closed"):
            await store.write_durably("head:1", b"x", keep_seconds=60)


async def test_what_was_queued_is_stored_once_a_worker_has_closed() -> None:
    async with serving() as served:
        store = await served.connect()
        for number in range(500):
            store.write(f"head:{number}", b"x" * 2_000, keep_seconds=60)
        await store.close()
        assert len(await served.stores.main.scan("head:")) == 500
        store.write("head:late", b"1", keep_seconds=60)
        assert await store.read("head:1") is None
        with pytest.raises(StoreError, match="closed"):
            await store.write_durably("head:1", b"1", keep_seconds=60)
