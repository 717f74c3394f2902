"""Several look-ups in one round trip."""

from collections.abc import Sequence

from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.state.record_cache import RecordStore
from gateway.state.trip import Trip
from gateway.store.memory import MemoryStore
from tests.builders.chat import make_batch, make_pivot
from tests.builders.state import make_storage, make_store
from tests.state.talk import talk

_PIVOT, _BATCH = make_pivot(talk(2), 3), make_batch(talk(2), [Mark(1)])


class NotingStore(MemoryStore):
    """Notes how many keys of each group it is asked for at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    async def read_groups(self, groups: Sequence[Sequence[str]]) -> list[tuple[str, bytes] | None]:
        self.asked.append([len(keys) for keys in groups])
        return await super().read_groups(groups)


async def make_noting_store() -> NotingStore:
    store = NotingStore()
    await store.open()
    return store


async def test_all_groups_go_in_one_trip_and_each_gives_its_first_record() -> None:
    store = await make_noting_store()
    pivots = RecordStore(Pivot, "pivot", make_storage(store))
    batches = RecordStore(Batch, "batch", make_storage(store))
    pivots.save("t", _PIVOT.key, _PIVOT)
    batches.save("t", _BATCH.key, _BATCH)
    trip, taken = Trip(store), list[str]()
    pivot = trip.ask(pivots, "t", ["00", _PIVOT.key], lambda key, _: taken.append(key))
    batch = trip.ask(batches, "t", [_BATCH.key])
    nothing = trip.ask(pivots, "t", ["00"], lambda key, _: taken.append(key))
    without_keys = trip.ask(pivots, "t", [])
    other = trip.ask(pivots, "u", [_PIVOT.key])
    await trip.run()
    assert store.asked == [[2, 1, 1, 1]]
    assert (pivot.record, batch.record) == (_PIVOT, _BATCH)
    assert nothing.record is without_keys.record is other.record is None
    assert taken == [_PIVOT.key, ""]


async def test_a_trip_without_keys_asks_nothing() -> None:
    store = await make_noting_store()
    trip = Trip(store)
    trip.ask(RecordStore(Pivot, "pivot", make_storage(store)), "t", [])
    await trip.run()
    assert store.asked == []


async def test_many_keys_are_looked_up_in_parts_so_that_others_have_their_turn() -> None:
    store = await make_noting_store()
    pivots = RecordStore(Pivot, "pivot", make_storage(store))
    pivots.save("t", _PIVOT.key, _PIVOT)
    unknown = [f"{at:064x}" for at in range(1_200)]
    trip = Trip(store)
    many = trip.ask(pivots, "t", unknown)
    few = trip.ask(pivots, "t", [*unknown[:2], _PIVOT.key])
    late = trip.ask(pivots, "t", [*unknown[:700], _PIVOT.key, "00"])
    await trip.run()
    assert store.asked == [[500, 3, 500], [500, 202], [200]]
    assert (many.record, few.record, late.record) == (None, _PIVOT, _PIVOT)


async def test_a_store_in_memory_gives_what_it_was_given() -> None:
    store = await make_store()
    pivots = RecordStore(Pivot, "pivot", make_storage(store))
    pivots.save("t", _PIVOT.key, _PIVOT)
    trip = Trip(store)
    found = trip.ask(pivots, "t", [_PIVOT.key])
    await trip.run()
    assert found.record == _PIVOT
