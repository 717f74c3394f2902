"""The lease of one leader: claimed, renewed, regained or lost."""

import asyncio
from dataclasses import replace

from gateway.compaction.leader import Leader, holding
from gateway.state import State
from gateway.store.leases import Held, Lease
from tests.builders.chat import make_pivot
from tests.builders.compaction import make_cut, receive
from tests.builders.state import connect
from tests.toy.shared_store import ToyServer

_CONVERSATION = receive(6).conversation
_PIVOT = make_pivot(_CONVERSATION, 9)


def make_leader(state: State, covers: int = 9) -> Leader:
    return Leader(state, "t", _CONVERSATION, make_cut(covers))


async def make_leaders(server: ToyServer) -> tuple[Leader, Leader]:
    """Of two processes."""
    return make_leader((await connect(server))[1]), make_leader((await connect(server))[1])


async def test_one_of_two_is_the_leader_until_it_releases_the_lease() -> None:
    one, other = await make_leaders(ToyServer())
    assert await one.claim() is None
    held = await other.claim()
    assert isinstance(held, Held)
    waiting = asyncio.create_task(other.wait(held))
    await one.release()
    await waiting
    assert await other.claim() is None


async def test_another_cut_of_the_chain_is_in_the_way_whichever_is_longer() -> None:
    server = ToyServer()
    (_, one), (_, other) = await connect(server), await connect(server)
    for first, second in ((7, 9), (9, 7)):
        leader = make_leader(one, first)
        assert await leader.claim() is None
        assert isinstance(await make_leader(other, second).claim(), Held)
        await leader.release()


async def test_a_lease_that_ran_out_is_claimed_again_to_save_what_was_made() -> None:
    server = ToyServer()
    one, other = await make_leaders(server)
    assert await one.claim() is None
    server.end_leases()
    assert await one.save(_PIVOT)
    assert isinstance(await other.claim(), Held)
    assert await other.find_newer() == _PIVOT


async def test_a_digest_of_the_same_messages_does_not_make_a_summary_needless() -> None:
    """A client that could not wait for the summary got it."""
    (_, state), (_, other) = [await connect(server) for server in [ToyServer()] * 2]
    leader = make_leader(state)
    await other.pivots.save_new(replace(_PIVOT, is_digest=True))
    assert await leader.find_newer() is None
    longer = replace(make_pivot(_CONVERSATION, 11), is_digest=True)
    await other.pivots.save_new(longer)
    assert await leader.find_newer() == longer


async def test_who_was_replaced_saves_nothing() -> None:
    server = ToyServer()
    one, other = await make_leaders(server)
    assert await one.claim() is None
    server.end_leases()
    assert await other.claim() is None
    assert not await one.save(_PIVOT)
    assert await other.find_newer() is None


async def test_who_was_replaced_by_one_that_is_done_saves_nothing() -> None:
    server = ToyServer()
    one, other = await make_leaders(server)
    assert await one.claim() is None
    server.end_leases()
    assert await other.claim() is None
    theirs = make_pivot(_CONVERSATION, 9, summary="Theirs.")
    assert await other.save(theirs)
    await other.release()
    assert not await one.save(_PIVOT)
    assert await one.find_newer() == theirs
    await one.release()
    assert await other.claim() is None


async def test_saving_and_renewing_regain_a_lease_together() -> None:
    """The one that comes second must not take the other one for a rival."""
    server = ToyServer()
    one, _ = await make_leaders(server)
    assert await one.claim() is None
    server.end_leases()
    assert all(await asyncio.gather(one.save(_PIVOT), one.save(_PIVOT)))


async def test_a_leader_without_a_lease_saves_nothing() -> None:
    one, other = await make_leaders(ToyServer())
    assert not await one.save(_PIVOT)
    assert await one.claim() is None
    await one.release()
    await one.release()
    assert not await one.save(_PIVOT)
    assert await other.claim() is None


async def test_a_lease_is_held_until_the_work_is_done_or_cancelled() -> None:
    server = ToyServer()
    _, state = await connect(server)
    lease = await state.leases.claim("t", "ab")
    assert isinstance(lease, Lease)

    async def work(done: asyncio.Event) -> None:
        async with holding(state.leases, lease):
            done.set()
            await asyncio.Event().wait()

    begun = asyncio.Event()
    working = asyncio.create_task(work(begun))
    await begun.wait()
    assert server.find_holding(lease.key) is not None
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert server.find_holding(lease.key) is None
