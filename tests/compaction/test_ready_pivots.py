"""A pivot that is ready is applied before its threshold, in all processes, and stays as it is otherwise."""

from dataclasses import replace

from gateway.compaction.ready_pivots import apply_early
from gateway.state import State
from gateway.state.trip import Trip
from gateway.store import StoreError
from gateway.store.memory import MemoryStore
from tests.builders.chat import make_pivot
from tests.builders.compaction import receive
from tests.builders.state import connect, make_state, make_store
from tests.toy.shared_store import ToyServer

_CONVERSATION = receive(6).conversation
_PIVOT = make_pivot(_CONVERSATION, 9)


def is_wanted(state: State) -> bool:
    return state.pivots.has_early("t", _CONVERSATION, 0)


async def test_it_is_looked_for_from_the_next_request_on_also_after_a_restart() -> None:
    store = await make_store()
    state = make_state(store)
    await state.pivots.save(_PIVOT)
    assert not is_wanted(state)
    await apply_early(state, _PIVOT)
    assert is_wanted(state)
    assert await make_state(store).pivots.load("t", _PIVOT.key) == replace(_PIVOT, is_early=True)


async def test_what_another_process_has_written_meanwhile_stays() -> None:
    server = ToyServer()
    (_, one), (store, other) = await connect(server), await connect(server)
    await one.pivots.save(_PIVOT)
    await other.pivots.load("t", _PIVOT.key)
    edited = replace(_PIVOT, summary="Better words.", version=2, edited_seconds=5.0)
    async with one.edits.hold("t", [_PIVOT.key]) as leases:
        assert await one.edits.save(leases[_PIVOT.key], _PIVOT, edited)
    await apply_early(other, _PIVOT)
    trip = Trip(store)
    one.pivots.ask_pivot(trip, "t", _PIVOT.key)
    await trip.run()
    assert one.pivots.find(_PIVOT.key) == other.pivots.find(_PIVOT.key) == replace(edited, is_early=True)
    assert is_wanted(one) and is_wanted(other)


class _Full(MemoryStore):
    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        raise StoreError("full")


async def test_without_a_store_it_waits_for_its_threshold() -> None:
    store = _Full()
    await store.open()
    state = make_state(store)
    state.pivots.hold(_PIVOT)
    await apply_early(state, _PIVOT)
    assert state.pivots.find(_PIVOT.key) == _PIVOT and not is_wanted(state)
