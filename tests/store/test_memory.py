import pytest

from gateway.store.errors import StoreError
from gateway.store.memory import MemoryStore


async def test_the_least_recently_used_records_are_dropped_first() -> None:
    store = MemoryStore(max_bytes=3 * 1_400)
    await store.open()
    for number in range(3):
        store.write(f"head:{number}", bytes(1_000), keep_seconds=60)
    assert await store.read("head:0") is not None
    store.write("head:3", bytes(1_000), keep_seconds=60)
    assert [key for key, _ in await store.scan("head:")] == ["head:0", "head:2", "head:3"]


async def test_rewriting_a_key_does_not_use_up_room() -> None:
    store = MemoryStore(max_bytes=3_000)
    await store.open()
    store.write("head:0", b"kept", keep_seconds=60)
    for _ in range(100):
        store.write("head:1", bytes(1_000), keep_seconds=60)
    assert await store.read("head:0") == b"kept"


async def test_a_record_larger_than_the_store_is_refused() -> None:
    store = MemoryStore(max_bytes=1_000)
    await store.open()
    store.write("head:0", b"kept", keep_seconds=60)
    store.write("head:1", bytes(1_000), keep_seconds=60)
    with pytest.raises(StoreError):
        await store.write_durably("pivot:1", bytes(1_000), keep_seconds=60)
    assert await store.scan("") == [("head:0", b"kept")]
