"""The contract of leases: one holder at a time, fences that grow, and nobody who waits for ever.

A lease belongs to a piece of work; its rivals are other cuts of the same conversation.
"""

import asyncio

import pytest

from tests.store.backends import SHARED, Backend, Held, Key, Lease, User
from tests.toy.running import wait_until

shared = pytest.mark.parametrize("place", SHARED, indirect=True)
timed = pytest.mark.parametrize("place", SHARED[:2], indirect=True)
PIVOT = Key("pivot", "1")


async def claim_until_granted(user: User, name: str) -> Lease:
    async with asyncio.timeout(30):
        while True:
            granted = await user.claim(name)
            if isinstance(granted, Lease):
                return granted
            await user.until_free(granted)


@shared
async def test_of_many_that_claim_a_lease_or_its_rivals_one_gets_it(backend: Backend) -> None:
    users = await backend.connect_two()
    names = [str(number) for number in range(4)]
    claims = [user.claim(names[at % 4], *names) for at, user in enumerate(users * 25)]
    granted = [each for each in await asyncio.gather(*claims) if isinstance(each, Lease)]
    assert len(granted) == 1 and granted[0].fence > 0


@shared
async def test_a_lease_that_is_held_names_its_holder_and_is_released_for_others(backend: Backend) -> None:
    one, other = await backend.connect_two()
    lease = await one.hold_lease("1")
    for name, rivals in (("1", ()), ("2", ("3", "1"))):
        held = await other.find_holder(name, *rivals)
        assert (held.key, held.fence) == (lease.key, lease.fence) and 0 < held.seconds_left <= 30
    assert isinstance(await other.claim("2", "3"), Lease)
    await one.release(lease)
    assert (await claim_until_granted(other, "1")).fence > lease.fence


@shared
async def test_tenants_have_leases_of_their_own(backend: Backend) -> None:
    one, other = await backend.connect_two()
    await one.hold_lease("1")
    assert isinstance(await other.claim("1", owner="another"), Lease)


@shared
async def test_who_waits_is_woken_by_the_release(backend: Backend) -> None:
    one, other = await backend.connect_two()
    lease, busy = await one.hold_lease("1"), await one.hold_lease("2")
    waiting = [
        asyncio.create_task(other.until_free(held))
        for held in (await other.find_holder("1"), await other.find_holder("3", "1"))
    ]
    stays = asyncio.create_task(other.until_free(await other.find_holder("2")))
    assert await one.renew(lease)
    await one.release(lease)
    async with asyncio.timeout(30):
        await asyncio.gather(*waiting)
        # One that is gone already is not waited for.
        await other.until_free(Held(lease.key, lease.fence, 30.0))
    assert not stays.done() and await one.renew(busy)
    stays.cancel()


@shared
async def test_a_lease_that_was_released_is_of_no_use(backend: Backend) -> None:
    one, other = await backend.connect_two()
    lost = await one.hold_lease("1")
    assert await one.put_under(lost, PIVOT, b"1")
    await one.release(lost)
    now = await claim_until_granted(other, "1")
    assert not await one.renew(lost)
    assert not await one.put_under(lost, PIVOT, b"late")
    # Nor does its release free the lease of the one that has it now.
    await one.release(lost)
    assert isinstance(await one.claim("1"), Held)
    assert await other.put_under(now, PIVOT, b"2")
    assert await one.read(PIVOT) == b"2"


@timed
async def test_a_lease_ends_unless_it_is_renewed(backend: Backend) -> None:
    one, other = await backend.connect_two()
    lease = await one.hold_lease("1", seconds=6)
    backend.clock.now += 5
    assert await one.renew(lease, seconds=6)
    backend.clock.now += 5
    assert isinstance(await other.claim("1"), Held)
    backend.clock.now += 2
    assert isinstance(await other.claim("1"), Lease)


@timed
async def test_who_was_late_and_replaced_cannot_write_and_the_one_behind_it_can(backend: Backend) -> None:
    one, other = await backend.connect_two()
    lost = await one.hold_lease("1", seconds=6)
    backend.clock.now += 7
    now = await other.hold_lease("1", seconds=6)
    assert now.fence > lost.fence
    assert not await one.renew(lost, seconds=6)
    assert not await one.put_under(lost, PIVOT, b"late")
    assert await one.read(PIVOT) is None
    assert await other.put_under(now, PIVOT, b"good")
    await other.release(now)
    assert not await one.put_under(lost, PIVOT, b"late")
    assert await one.read(PIVOT) == b"good"


@pytest.mark.parametrize("place", SHARED[1:], indirect=True)
async def test_who_waits_for_a_dead_holder_goes_on_when_its_time_is_over(backend: Backend) -> None:
    one, other = await backend.connect_two()
    lease = await one.hold_lease("1", seconds=0.1)
    held = await other.find_holder("1")
    assert held.seconds_left <= 0.1
    waiting = asyncio.create_task(other.until_free(held))
    await asyncio.sleep(0.01)
    backend.clock.now += 1
    await asyncio.wait_for(waiting, 30)
    assert (await claim_until_granted(other, "1")).fence > lease.fence


@timed
async def test_the_death_of_the_holder_frees_its_lease_for_those_who_wait(backend: Backend) -> None:
    one, other = await backend.connect_two()
    await one.hold_lease("1")
    waiting = asyncio.create_task(other.until_free(await other.find_holder("2", "1")))
    await asyncio.sleep(0)
    backend.kill(one)
    await asyncio.wait_for(waiting, 30)
    await claim_until_granted(other, "1")


@pytest.mark.parametrize("place", SHARED[1:], indirect=True)
async def test_a_claim_whose_caller_is_cancelled_holds_nothing_for_long(backend: Backend) -> None:
    one, other = await backend.connect_two()
    claiming = asyncio.create_task(one.claim("1", seconds=0.5))
    await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    backend.clock.now += 1
    await claim_until_granted(other, "1")


@shared
async def test_of_many_that_wait_those_who_are_cancelled_disturb_nobody(backend: Backend) -> None:
    one, other = await backend.connect_two()
    lease = await one.hold_lease("1")
    held = await other.find_holder("1")
    waiting = [asyncio.create_task(other.until_free(held)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in waiting[:9]:
        task.cancel()
    await wait_until(lambda: all(task.done() for task in waiting[:9]))
    await one.release(lease)
    await asyncio.wait_for(waiting[9], 30)


@shared
async def test_one_piece_of_work_is_done_once_however_many_want_it(backend: Backend) -> None:
    """As for a summary: whoever gets the lease looks first whether another one has made it."""
    users = [await backend.connect() for _ in range(3)]
    made: list[int] = []

    async def work(user: User, number: int) -> bytes:
        async with asyncio.timeout(30):
            while (found := await user.read(PIVOT)) is None:
                lease = await claim_until_granted(user, "1")
                if await user.read(PIVOT) is None:
                    made.append(number)
                    assert await user.put_under(lease, PIVOT, b"%d" % number)
                await user.release(lease)
        return found

    found = await asyncio.gather(*(work(user, at) for at, user in enumerate(users * 8)))
    assert len(made) == 1 and set(found) == {b"%d" % made[0]}
