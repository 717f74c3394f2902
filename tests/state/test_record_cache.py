from dataclasses import replace

import pytest

from gateway.core.history.pivot import Pivot
from gateway.core.sizing.estimate import Calibration
from gateway.state.record_cache import RecordCache, RecordStore
from gateway.state.records import render_record
from gateway.store import StoreError
from gateway.store.keys import make_tag
from gateway.store.leases import Lease
from gateway.store.memory import MemoryStore
from tests.builders.chat import make_pivot
from tests.builders.state import make_storage, make_store, stored_key
from tests.state.talk import talk
from tests.toy.shared_store import ToyServer

_PIVOT = make_pivot(talk(2), 3)
_KEY = _PIVOT.key


def make_cache(store: MemoryStore, **fields: object) -> RecordCache[Pivot]:
    return RecordCache(Pivot, "pivot", make_storage(store, **fields))


async def test_a_saved_record_is_in_memory_at_once_and_in_the_store() -> None:
    store = await make_store()
    cache = make_cache(store)
    cache.save("t", _KEY, _PIVOT)
    assert cache.find(_KEY) == _PIVOT
    assert await store.read(stored_key("pivot", _KEY)) == render_record("t", _PIVOT)


async def test_a_record_that_memory_has_is_loaded_without_the_store() -> None:
    store = await make_store()
    cache = make_cache(store)
    cache.hold("t", _KEY, _PIVOT)
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
    records = RecordStore(Pivot, "pivot", make_storage(store))
    records.save("t", _KEY, _PIVOT)
    assert [await records.load_first("t", keys) for keys in ([], ["00"])] == [None, None]
    assert await records.load_first("t", ["00", _KEY]) == (_KEY, _PIVOT)


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
    store.delete(stored_key("pivot", _KEY))
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
    store.delete(stored_key("pivot", _KEY))
    cache.refresh("t", _KEY, _PIVOT)
    assert len(await store.scan("pivot:")) == 1


async def test_of_two_that_save_a_new_record_both_have_the_first() -> None:
    store = await make_store()
    one, other = make_cache(store), make_cache(store)
    second = replace(_PIVOT, summary="Another one.")
    assert await one.save_new("t", _KEY, _PIVOT) == _PIVOT
    assert await other.save_new("t", _KEY, second) == _PIVOT
    assert one.find(_KEY) == other.find(_KEY) == _PIVOT


async def test_a_record_of_a_lost_lease_is_kept_nowhere() -> None:
    server = ToyServer()
    store = server.connect()
    await store.open()
    cache = RecordCache(Pivot, "pivot", make_storage(store))
    lease = await store.leases.claim(stored_key("lease", "ab"), (), keep_seconds=60)
    assert isinstance(lease, Lease)
    assert await cache.save_leased(lease, "t", _KEY, _PIVOT)
    server.end_leases()
    assert not await cache.save_leased(lease, "t", _KEY, replace(_PIVOT, summary="Late."))
    assert cache.find(_KEY) == await cache.stored.load("t", _KEY) == _PIVOT


async def test_what_another_process_has_changed_is_asked_for_once_more() -> None:
    store = await make_store()
    cache, other = make_cache(store), make_cache(store)
    cache.save("t", _KEY, _PIVOT)
    changed = replace(_PIVOT, summary="Another one.")
    other.save("t", _KEY, changed)
    assert await cache.load("t", _KEY) == _PIVOT
    cache.outdate(_KEY)
    assert not cache.is_current(_KEY) and cache.find(_KEY) == _PIVOT
    assert await cache.load("t", _KEY) == changed
    store.delete(stored_key("pivot", _KEY))
    cache.outdate(_KEY)
    assert await cache.load("t", _KEY) == changed and cache.is_current(_KEY)


async def test_in_a_new_generation_the_store_may_have_lost_a_record() -> None:
    store = ToyServer().connect()
    await store.open()
    cache = RecordCache(Pivot, "pivot", make_storage(store))
    cache.hold("t", _KEY, _PIVOT)
    assert not cache.is_stored(_KEY)
    cache.save("t", _KEY, _PIVOT)
    assert cache.is_stored(_KEY)
    await store.mend()
    assert not cache.is_stored(_KEY)
    store.delete(stored_key("pivot", _KEY))
    cache.refresh("t", _KEY, _PIVOT)
    assert cache.is_stored(_KEY) and await cache.stored.load("t", _KEY) == _PIVOT


async def test_whoever_listens_is_told_of_what_had_to_make_room() -> None:
    cache, lost = make_cache(await make_store(), max_bytes=1_000), list[Pivot]()
    cache.on_lost = lost.append
    cache.hold("t", "aa", _PIVOT)
    assert lost == []
    cache.hold("t", "bb", replace(_PIVOT, key="bb"))
    assert (lost, cache.find("aa"), cache.size_bytes <= 1_000) == ([_PIVOT], None, True)


async def test_a_tenant_is_forgotten_and_the_others_are_not() -> None:
    cache = make_cache(await make_store())
    cache.hold("t", "aa", _PIVOT)
    cache.hold("u", "bb", _PIVOT)
    cache.forget(make_tag("t"))
    assert (cache.find("aa"), cache.find("bb")) == (None, _PIVOT)


@pytest.mark.parametrize("value", [b"", b"garbage", b'{"version":9}', render_record("u", _PIVOT)])
async def test_a_damaged_record_and_one_of_another_owner_are_absent(value: bytes) -> None:
    store = await make_store()
    store.write(stored_key("pivot", _KEY), value, keep_seconds=60)
    records = RecordStore(Pivot, "pivot", make_storage(store))
    assert await records.load("t", _KEY) is None
    assert await records.load_first("t", [_KEY]) is None


async def test_a_record_under_the_key_of_another_is_absent() -> None:
    store = await make_store()
    store.write(stored_key("pivot", "00"), render_record("t", _PIVOT), keep_seconds=60)
    records = RecordStore(Pivot, "pivot", make_storage(store))
    assert await records.load("t", "00") is None
    assert await records.load_first("t", ["00"]) is None


async def test_a_deleted_record_is_absent() -> None:
    store = await make_store()
    records = RecordStore(Calibration, "calibration", make_storage(store))
    records.save("t", "ab", Calibration(2.0, 1))
    assert await records.load("t", "ab") == Calibration(2.0, 1)
    records.delete("t", "ab")
    assert await records.load("t", "ab") is None
