import pytest

from gateway.store import StoreError
from gateway.store.memory import MemoryStore
from gateway.store.stores import Stores
from gateway.store.timed import TimedStore, time_stores

Noted = list[tuple[str, bool]]


class FullStore(MemoryStore):
    """Refuses what must be durable."""

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        raise StoreError("full")


def make_timed(store: MemoryStore, noted: Noted) -> TimedStore:
    def note(operation: str, seconds: float, has_failed: bool) -> None:
        assert seconds >= 0
        noted.append((operation, has_failed))

    return TimedStore(store, note)


async def test_it_does_what_the_store_does_and_notes_what_waits() -> None:
    noted: Noted = []
    store = make_timed(MemoryStore(), noted)
    await store.open()
    store.write("head:a", b"1", keep_seconds=60)
    await store.write_durably("head:b", b"2", keep_seconds=60)
    assert await store.write_new("head:c", b"3", keep_seconds=60) == b"3"
    assert await store.read("head:a") == b"1"
    assert await store.read_first(("head:x", "head:b")) == ("head:b", b"2")
    assert await store.read_groups([("head:c",)]) == [("head:c", b"3")]
    assert len(await store.scan("head:")) == 3
    assert await store.take("head:c") == b"3"
    store.delete("head:b")
    await store.purge("0" * 32)
    await store.close()
    assert [operation for operation, _ in noted] == [
        *("write", "write", "read", "read", "read", "scan", "take", "purge")
    ]
    assert not any(has_failed for _, has_failed in noted)


async def test_a_failure_is_noted_and_raised() -> None:
    noted: Noted = []
    with pytest.raises(StoreError, match="full"):
        await make_timed(FullStore(), noted).write_durably("head:a", b"1", keep_seconds=60)
    assert noted == [("write", True)]


def test_it_is_shared_if_the_store_is() -> None:
    inner = MemoryStore()
    store = make_timed(inner, [])
    assert (store.is_shared, store.leases, store.news) == (inner.is_shared, inner.leases, inner.news)


async def test_all_stores_of_a_gateway_are_timed() -> None:
    noted: Noted = []
    stores = Stores(main=MemoryStore(), originals=MemoryStore(), named=MemoryStore())
    timed = time_stores(stores, lambda operation, _, has_failed: noted.append((operation, has_failed)))
    await timed.open()
    for store in (timed.main, timed.originals, timed.named):
        await store.read("head:a")
    await timed.close()
    assert noted == [("read", False)] * 3
