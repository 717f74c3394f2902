from collections.abc import Sequence

import pytest

from gateway.core.history.pivot import Pivot
from gateway.core.sizing.estimate import Calibration
from gateway.state.record_cache import RecordCache, RecordStore
from gateway.state.records import render_record
from gateway.store import StoreError
from gateway.store.memory import MemoryStore
from tests.builders.chat import make_pivot
from tests.builders.state import make_storage, make_store
from tests.state.talk import talk

_PIVOT = make_pivot(talk(2), 3)
_KEY = _PIVOT.key


def make_cache(store: MemoryStore, **fields: object) -> RecordCache[Pivot]:
    return RecordCache(Pivot, "pivot", make_storage(store, **fields))


async def test_a_saved_record_is_in_memory_at_once_and_in_the_store() -> None:
    store = await make_store()
    cache = make_cache(store)
    cache.save("t", _KEY, _PIVOT)
    assert cache.find(_KEY) == _PIVOT
    assert await store.read(f"pivot:{_KEY}") == render_record("t", _PIVOT)


async def test_a_record_that_memory_has_is_loaded_without_the_store() -> None:
    store = await make_store()
    cache = make_cache(store)
    cache.hold(_KEY, _PIVOT)
    await store.close()
    assert await cache.load("t", _KEY) == _PIVOT


async def test_a_loaded_record_stays_in_memory() -> None:
    store = await make_store()
    make_cache(store).save("t", _KEY, _PIVOT)
    cache = make_cache(store)
    assert cache.find(_KEY) is None
    assert await cache.load("t", _KEY) == _PIVOT
    assert cache.find(_KEY) == _PIVOT
    assert cache.list_all() == [_PIVOT]


async def test_the_first_key_that_the_store_has_is_loaded() -> None:
    store = await make_store()
    make_cache(store).save("t", _KEY, _PIVOT)
    cache = make_cache(store)
    await cache.load_first("t", [])
    await cache.load_first("t", ["00"])
    assert cache.list_all() == []
    await cache.load_first("t", ["00", _KEY])
    assert cache.list_all() == [_PIVOT]


class NotingStore(MemoryStore):
    """Notes how many keys it is asked for at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def read_first(self, keys: Sequence[str]) -> tuple[str, bytes] | None:
        self.asked.append(len(keys))
        return await super().read_first(keys)


async def test_a_long_list_of_keys_is_looked_up_in_parts_so_that_others_have_their_turn() -> None:
    store = NotingStore()
    await store.open()
    make_cache(store).save("t", _KEY, _PIVOT)
    cache = make_cache(store)
    await cache.load_first("t", (f"{at:064x}" for at in range(1_200)))
    assert (store.asked, cache.list_all()) == ([500, 500, 200], [])
    await cache.load_first("t", [*(f"{at:064x}" for at in range(700)), _KEY, "00"])
    assert cache.list_all() == [_PIVOT]


async def test_a_record_that_is_not_durable_is_not_in_memory() -> None:
    store = await make_store()
    await store.close()
    cache = make_cache(store)
    with pytest.raises(StoreError):
        await cache.save_durably("t", _KEY, _PIVOT)
    assert cache.find(_KEY) is None


async def test_a_record_in_use_is_written_again_when_it_is_old() -> None:
    now = [0.0]
    store = await make_store()
    cache = make_cache(store, keep_seconds=40, clock=lambda: now[0])
    cache.save("t", _KEY, _PIVOT)
    store.delete(f"pivot:{_KEY}")
    now[0] = 9.0
    cache.refresh("t", _KEY, _PIVOT)
    assert await store.scan("pivot:") == []
    now[0] = 10.0
    cache.refresh("t", _KEY, _PIVOT)
    assert len(await store.scan("pivot:")) == 1


async def test_a_loaded_record_is_written_again_at_its_first_use() -> None:
    store = await make_store()
    make_cache(store).save("t", _KEY, _PIVOT)
    cache = make_cache(store)
    await cache.load("t", _KEY)
    store.delete(f"pivot:{_KEY}")
    cache.refresh("t", _KEY, _PIVOT)
    assert len(await store.scan("pivot:")) == 1


async def test_a_record_that_is_held_in_memory_alone_is_made_durable_once() -> None:
    store = await make_store()
    cache = make_cache(store)
    cache.hold(_KEY, _PIVOT)
    assert cache.find(_KEY) == _PIVOT and await store.scan("pivot:") == []
    await cache.save_held_durably("t", _KEY, _PIVOT)
    assert len(await store.scan("pivot:")) == 1
    store.delete(f"pivot:{_KEY}")
    await cache.save_held_durably("t", _KEY, _PIVOT)
    assert await store.scan("pivot:") == []


async def test_memory_counts_what_it_had_to_drop() -> None:
    cache = make_cache(await make_store(), max_bytes=1_000)
    cache.hold("aa", _PIVOT)
    assert cache.evictions == 0
    cache.hold("bb", _PIVOT)
    assert (cache.evictions, cache.find("aa"), cache.size_bytes <= 1_000) == (1, None, True)


@pytest.mark.parametrize("value", [b"", b"garbage", b'{"version":9}', render_record("u", _PIVOT)])
async def test_a_damaged_record_and_one_of_another_owner_are_absent(value: bytes) -> None:
    store = await make_store()
    store.write(f"pivot:{_KEY}", value, keep_seconds=60)
    records = RecordStore(Pivot, "pivot", make_storage(store))
    assert await records.load("t", _KEY) is None
    assert await records.load_first("t", [_KEY]) is None


async def test_a_record_under_the_key_of_another_is_absent() -> None:
    store = await make_store()
    store.write("pivot:00", render_record("t", _PIVOT), keep_seconds=60)
    records = RecordStore(Pivot, "pivot", make_storage(store))
    assert await records.load("t", "00") is None
    assert await records.load_first("t", ["00"]) is None


async def test_a_deleted_record_is_absent() -> None:
    store = await make_store()
    records = RecordStore(Calibration, "calibration", make_storage(store))
    records.save("t", "ab", Calibration(2.0, 1))
    assert await records.load("t", "ab") == Calibration(2.0, 1)
    records.delete("ab")
    assert await records.load("t", "ab") is None
