"""Leases on compactions, and the note that a leader leaves when its summary failed."""

from gateway.state.compaction_leases import CompactionLeases, LeaseTimes
from gateway.store.leases import Held, Lease
from tests.builders.state import make_storage
from tests.store.clock import Clock
from tests.toy.shared_store import SharedStore, ToyServer


async def connect(server: ToyServer) -> tuple[SharedStore, CompactionLeases]:
    store = server.connect()
    await store.open()
    return store, CompactionLeases(make_storage(store), LeaseTimes())


async def lead(leases: CompactionLeases, key: str = "ab") -> Lease:
    lease = await leases.claim("t", key)
    assert isinstance(lease, Lease)
    return lease


async def test_a_lease_is_for_one_tenant() -> None:
    server = ToyServer()
    (_, one), (_, other) = await connect(server), await connect(server)
    lease = await lead(one)
    held = await other.claim("t", "cd", ["ab"])
    assert isinstance(held, Held) and (held.key, held.fence) == (lease.key, lease.fence)
    assert isinstance(await other.claim("u", "cd", ["ab"]), Lease)


async def test_a_lease_that_is_renewed_outlives_its_time() -> None:
    clock = Clock()
    server = ToyServer(clock)
    (_, one), (_, other) = await connect(server), await connect(server)
    lease = await lead(one)
    clock.now += one.times.keep_seconds - 1
    assert await one.renew(lease)
    clock.now += one.times.keep_seconds - 1
    assert isinstance(await other.claim("t", "ab"), Held)
    clock.now += 2
    await lead(other)
    assert not await one.renew(lease)


async def test_those_who_waited_learn_why_the_leader_made_no_pivot() -> None:
    server = ToyServer()
    (_, one), (_, other) = await connect(server), await connect(server)
    lease = await lead(one)
    held = await other.claim("t", "ab")
    assert isinstance(held, Held)
    assert await other.find_failure("t", held) is None
    await one.note_failure("t", lease, "refusal")
    await one.release(lease)
    await other.wait(held)
    assert await other.find_failure("t", held) == "refusal"
    assert await other.find_failure("u", held) is None


async def test_the_failure_of_an_earlier_leader_says_nothing_about_a_later_one() -> None:
    server = ToyServer()
    (_, one), (_, other) = await connect(server), await connect(server)
    lease = await lead(one)
    await one.note_failure("t", lease, "refusal")
    await one.release(lease)
    await lead(one)
    held = await other.claim("t", "ab")
    assert isinstance(held, Held)
    assert await other.find_failure("t", held) is None


async def test_who_has_lost_the_lease_leaves_no_note() -> None:
    server = ToyServer()
    (_, one), (_, other) = await connect(server), await connect(server)
    lost = await lead(one)
    server.end_leases()
    await lead(other)
    await one.note_failure("t", lost, "refusal")
    assert await other.find_failure("t", Held(lost.key, lost.fence, 1.0)) is None
