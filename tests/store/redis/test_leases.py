"""Leases over processes: one holder, fences, takeover, and nobody who polls."""

import asyncio

import pytest

from gateway.store.leases import Held, Lease
from tests.store.redis.servers import TAG, Setting, key, two_processes
from tests.toy.redis_server import requires_redis
from tests.toy.running import wait_until

pytestmark = requires_redis
LEASES = [key("lease", number) for number in range(4)]
PIVOT = key("pivot", 1)


async def claim(setting: Setting, place: int = 0, *, keep_seconds: float = 60) -> Lease:
    granted = await setting.near.leases.claim(LEASES[place], LEASES[place + 1 :], keep_seconds=keep_seconds)
    assert isinstance(granted, Lease) and granted.fence > 0
    return granted


async def test_one_of_many_gets_the_lease_of_a_chain() -> None:
    async with two_processes() as setting:
        stores = [setting.near, setting.far] * 25
        claims = [
            store.leases.claim(LEASES[number % 4], LEASES, keep_seconds=60)
            for number, store in enumerate(stores)
        ]
        granted = [each for each in await asyncio.gather(*claims) if isinstance(each, Lease)]
        assert len(granted) == 1


async def test_who_waits_is_woken_by_the_release_and_asks_the_server_nothing() -> None:
    async with two_processes() as setting:
        lease = await claim(setting)
        held = await setting.far.leases.claim(LEASES[2], LEASES[:2], keep_seconds=60)
        assert isinstance(held, Held) and (held.key, held.fence) == lease and held.seconds_left > 50
        waiting = asyncio.create_task(setting.far.leases.wait(held))
        await setting.server.run("CONFIG", "RESETSTAT")
        assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
        await setting.near.leases.release(lease)
        await asyncio.wait_for(waiting, 30)
        # Once a second each process sees that the server is there.
        assert set(await setting.server.count_calls()) <= {
            *("evalsha", "eval", "publish", "unlink", "get", "info", "ping", "set", "config|resetstat")
        }
        later = await setting.far.leases.claim(LEASES[2], LEASES[:2], keep_seconds=60)
        assert isinstance(later, Lease) and later.fence > lease.fence


async def test_a_release_before_the_wait_is_not_missed() -> None:
    async with two_processes() as setting:
        lease = await claim(setting)
        held = await setting.far.leases.claim(LEASES[0], (), keep_seconds=60)
        assert isinstance(held, Held)
        await setting.near.leases.release(lease)
        await asyncio.wait_for(setting.far.leases.wait(held), 30)


async def test_a_lease_that_nobody_renews_ends_for_who_waits() -> None:
    async with two_processes() as setting:
        lease = await claim(setting, keep_seconds=0.2)
        held = await setting.far.leases.claim(LEASES[0], (), keep_seconds=60)
        assert isinstance(held, Held) and held.seconds_left <= 0.2
        await setting.far.leases.wait(held)
        taken: Lease | Held = held
        while isinstance(taken, Held):  # the clocks of both sides may differ by a millisecond
            taken = await setting.far.leases.claim(LEASES[0], (), keep_seconds=60)
        assert taken.fence > lease.fence


async def test_who_has_lost_its_lease_cannot_write() -> None:
    async with two_processes() as setting:
        lease = await claim(setting)
        assert await setting.near.leases.renew(lease, keep_seconds=60)
        await setting.server.run("DEL", f"gateway1:{LEASES[0]}")
        other = await setting.far.leases.claim(LEASES[0], (), keep_seconds=60)
        assert isinstance(other, Lease)
        assert not await setting.near.leases.renew(lease, keep_seconds=60)
        assert not await setting.near.leases.write(lease, PIVOT, b"late", keep_seconds=60)
        assert await setting.far.leases.write(other, PIVOT, b"good", keep_seconds=60)
        await setting.far.leases.release(other)
        assert not await setting.near.leases.write(lease, PIVOT, b"late", keep_seconds=60)
        assert await setting.near.read(PIVOT) == b"good"


async def test_renewing_an_older_lease_gives_a_lost_one_no_second_chance() -> None:
    """Both have the same tenant, so they share the counter that says which lease is the newest."""
    async with two_processes() as setting:
        older = await setting.near.leases.claim(LEASES[3], (), keep_seconds=60)
        lost = await setting.near.leases.claim(LEASES[0], (), keep_seconds=60)
        await setting.server.run("DEL", f"gateway1:{LEASES[0]}")
        newer = await setting.far.leases.claim(LEASES[0], (), keep_seconds=60)
        assert isinstance(older, Lease) and isinstance(lost, Lease) and isinstance(newer, Lease)
        assert await setting.far.leases.write(newer, PIVOT, b"good", keep_seconds=60)
        await setting.far.leases.release(newer)
        await wait_until_free(setting, LEASES[0])
        assert await setting.near.leases.renew(older, keep_seconds=60)
        assert not await setting.near.leases.write(lost, PIVOT, b"late", keep_seconds=60)
        assert await setting.near.read(PIVOT) == b"good"


async def wait_until_free(setting: Setting, name: str) -> None:
    async with asyncio.timeout(30):
        while await setting.server.run("EXISTS", f"gateway1:{name}"):
            await asyncio.sleep(0)


async def test_a_lease_outlives_a_server_that_lost_everything() -> None:
    async with two_processes() as setting:
        lease = await claim(setting)
        await setting.server.run("FLUSHALL")
        assert await setting.near.leases.renew(lease, keep_seconds=60)
        assert isinstance(await setting.far.leases.claim(LEASES[0], (), keep_seconds=60), Held)
        assert await setting.near.leases.write(lease, PIVOT, b"good", keep_seconds=60)


async def test_without_a_server_a_process_goes_on_alone_and_overwrites_nothing_later() -> None:
    async with two_processes() as setting:
        await setting.proxy.refuse()
        lease = await setting.near.leases.claim(LEASES[0], (), keep_seconds=60)
        assert lease == Lease(LEASES[0], 0)
        assert await setting.near.leases.renew(lease, keep_seconds=60)
        assert await setting.near.leases.write(lease, PIVOT, b"alone", keep_seconds=60)
        assert await setting.near.read(PIVOT) == b"alone"
        await setting.far.write_durably(PIVOT, b"together", keep_seconds=60)
        await setting.proxy.start()
        async with asyncio.timeout(30):
            while await setting.near.read(PIVOT) != b"together":
                await asyncio.sleep(0.01)
        await setting.near.leases.release(lease)
        assert await setting.far.read(PIVOT) == b"together"


async def test_who_waits_goes_on_when_the_server_is_lost() -> None:
    async with two_processes() as setting:
        await setting.far.leases.claim(LEASES[0], (), keep_seconds=60)
        held = await setting.near.leases.claim(LEASES[0], (), keep_seconds=60)
        assert isinstance(held, Held)
        waiting = asyncio.create_task(setting.near.leases.wait(held))
        await setting.proxy.refuse()
        await asyncio.wait_for(waiting, 30)
        await setting.near.leases.wait(held)


async def test_a_write_in_the_middle_of_which_the_server_is_lost_is_kept() -> None:
    async with two_processes(timeout_ms=100) as setting:
        lease = await claim(setting)
        setting.proxy.stall()
        assert await setting.near.leases.write(lease, PIVOT, b"kept", keep_seconds=60)
        assert await setting.near.read(PIVOT) == b"kept"
        setting.proxy.delay_seconds = 0
        async with asyncio.timeout(30):
            while await setting.far.read(PIVOT) != b"kept":
                await asyncio.sleep(0.01)


async def test_the_key_of_a_record_is_checked() -> None:
    async with two_processes() as setting:
        lease = await claim(setting)
        with pytest.raises(ValueError, match="printable"):
            await setting.near.leases.write(lease, "pivot:ä", b"x", keep_seconds=60)


async def test_nobody_is_left_behind_in_memory() -> None:
    async with two_processes() as setting:
        await setting.far.leases.claim(LEASES[0], (), keep_seconds=60)
        held = await setting.near.leases.claim(LEASES[0], (), keep_seconds=60)
        assert isinstance(held, Held)
        waiting = [asyncio.create_task(setting.near.leases.wait(held)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in waiting[:9]:
            task.cancel()
        await wait_until(lambda: all(task.done() for task in waiting[:9]))
        await setting.far.leases.release(Lease(held.key, held.fence))
        await asyncio.wait_for(waiting[9], 30)


async def test_a_release_that_never_arrived_lets_nobody_ask_in_circles() -> None:
    async with two_processes(timeout_ms=100) as setting:
        lease = await claim(setting)
        setting.proxy.stall()
        await setting.near.leases.release(lease)
        await wait_until(lambda: setting.proxy.opened > 2)
        setting.proxy.delay_seconds = 0
        granted: Lease | Held = Lease(lease.key, 0)
        async with asyncio.timeout(30):
            while isinstance(granted, Lease):  # of a process alone, until the server is back
                granted = await setting.near.leases.claim(LEASES[0], (), keep_seconds=60)
                await asyncio.sleep(0.01)
        waiting = asyncio.create_task(setting.near.leases.wait(granted))
        await asyncio.wait({waiting}, timeout=0.1)
        setting.far.news.announce(TAG, "anything")
        assert not waiting.done()
        waiting.cancel()


async def test_a_server_that_has_forgotten_a_release_lets_nobody_ask_in_circles() -> None:
    """As a replica that became the primary before it had heard of it."""
    async with two_processes() as setting:
        lease = await claim(setting)
        await setting.near.leases.release(lease)
        held = Held(lease.key, lease.fence, 60)
        await asyncio.wait_for(setting.near.leases.wait(held), 30)
        generation = setting.near.news.generation
        await setting.proxy.refuse()
        await setting.proxy.start()
        await wait_until(lambda: setting.near.news.generation > generation + 1)
        assert isinstance(await claim_until_granted(setting), Lease)
        waiting = asyncio.create_task(setting.near.leases.wait(held))
        await asyncio.wait({waiting}, timeout=0.1)
        assert not waiting.done()
        waiting.cancel()


async def claim_until_granted(setting: Setting) -> Lease | Held:
    """By the server, which has to be back for it."""
    async with asyncio.timeout(30):
        while True:
            granted = await setting.near.leases.claim(LEASES[2], (), keep_seconds=60)
            if granted.fence:
                return granted
            await asyncio.sleep(0.01)
