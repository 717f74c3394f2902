"""One holder at a time, fences that grow, and waits that end with the lease."""

import asyncio

from gateway.store.leases import Held, Lease
from gateway.store.served.lease_table import LeaseTable
from tests.store.clock import Clock


def granted(result: Lease | Held) -> Lease:
    assert isinstance(result, Lease)
    return result


def test_a_lease_is_held_by_one_and_fences_grow() -> None:
    table = LeaseTable(Clock())
    first = granted(table.claim("a", "lease:1", [], 6))
    held = table.claim("b", "lease:1", [], 6)
    assert held == Held("lease:1", first.fence, 6)
    table.release(first)
    second = granted(table.claim("b", "lease:1", [], 6))
    assert second.fence > first.fence
    # What the first one does late is nothing.
    table.release(first)
    assert table.is_held(second) and not table.is_held(first)
    assert not table.renew(first, 6)


def test_a_rival_that_is_held_is_named() -> None:
    table = LeaseTable(Clock())
    rival = granted(table.claim("a", "lease:2", [], 6))
    held = table.claim("b", "lease:1", ["lease:3", "lease:2"], 6)
    assert held == Held("lease:2", rival.fence, 6)
    assert isinstance(table.claim("b", "lease:1", ["lease:3"], 6), Lease)


def test_a_lease_ends_unless_it_is_renewed() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    lease = granted(table.claim("a", "lease:1", [], 6))
    clock.now += 5
    assert table.renew(lease, 6)
    clock.now += 5
    assert table.is_held(lease)
    clock.now += 2
    assert not table.is_held(lease)
    assert not table.renew(lease, 6)
    assert isinstance(table.claim("b", "lease:1", [], 6), Lease)


def test_fences_of_a_later_table_are_larger() -> None:
    first, second = LeaseTable(), LeaseTable()
    earlier = granted(first.claim("a", "lease:1", [], 6))
    assert granted(second.claim("a", "lease:1", [], 6)).fence > earlier.fence


async def test_those_who_wait_are_woken_by_the_release_and_by_the_death_of_the_holder() -> None:
    table = LeaseTable()
    lease, other = (
        granted(table.claim("a", "lease:1", [], 600)),
        granted(table.claim("a", "lease:2", [], 600)),
    )
    waiting = [asyncio.create_task(table.wait(each)) for each in (lease, lease, other)]
    await asyncio.sleep(0)
    table.release(lease)
    await asyncio.wait_for(asyncio.gather(*waiting[:2]), 30)
    assert not waiting[2].done()
    table.drop("a")
    await asyncio.wait_for(waiting[2], 30)
    await table.wait(lease)


async def test_a_wait_ends_when_the_lease_does() -> None:
    table = LeaseTable()
    lease = granted(table.claim("a", "lease:1", [], 0.02))
    await asyncio.wait_for(table.wait(lease), 30)
    assert not table.is_held(lease)


def test_leases_that_were_never_released_do_not_pile_up() -> None:
    clock = Clock()
    table = LeaseTable(clock)
    for number in range(1_001):
        table.claim("a", f"lease:{number}", [], 6)
    clock.now += 7
    table.claim("a", "lease:last", [], 6)
    assert table.count == 1
