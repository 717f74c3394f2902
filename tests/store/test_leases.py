"""The leases of a store that one process uses."""

from gateway.store.leases import Lease, LocalLeases
from tests.builders.state import make_store


async def test_every_lease_is_granted_with_a_larger_fence() -> None:
    leases = LocalLeases(await make_store())
    first = await leases.claim("lease:1", ["lease:2"], keep_seconds=1)
    second = await leases.claim("lease:1", [], keep_seconds=1)
    assert isinstance(first, Lease) and isinstance(second, Lease)
    assert second.fence > first.fence
    assert await leases.renew(first, keep_seconds=1)
    await leases.release(first)


async def test_what_a_holder_writes_is_in_the_store() -> None:
    store = await make_store()
    leases = LocalLeases(store)
    assert await leases.write(Lease("lease:1", 1), "pivot:1", b"p", keep_seconds=60)
    assert await store.read("pivot:1") == b"p"
