from dataclasses import replace

from gateway.core.history.recall import Recall, RecallRound, ReplyMark
from gateway.state import State
from gateway.state.trip import Trip
from gateway.store.keys import make_tag
from tests.builders.recalls import make_recall
from tests.builders.state import make_state, make_store, stored_key
from tests.state.talk import talk

_ONE = make_recall(talk(3), 3)
_OTHER = make_recall(talk(3), 3, reply=ReplyMark(calls=("x",)))


async def make_states(count: int) -> list[State]:
    """Processes that share a store."""
    store = await make_store()
    return [make_state(store) for _ in range(count)]


async def test_a_secured_recall_is_found_by_another_process() -> None:
    before, after = await make_states(2)
    assert not before.recalls.is_secure([_ONE])
    await before.recalls.secure([_ONE, _OTHER])
    assert before.recalls.is_secure([_ONE, _OTHER])
    keys = [_OTHER.key, "ab", _ONE.key]
    assert after.recalls.lacks(keys)
    assert await after.recalls.load("t", keys) == [_OTHER, _ONE]
    # It does not ask again for what the store does not have.
    assert not after.recalls.lacks(keys)


async def test_of_two_under_one_key_the_first_that_is_stored_is_used_by_all() -> None:
    one, two = await make_states(2)
    later = replace(_ONE, rounds=(RecallRound(call="LATER", results=""),), created_seconds=9.0)
    await one.recalls.secure([_ONE])
    await two.recalls.secure([later])
    assert two.recalls.find(_ONE.key) == _ONE
    two.recalls.hold(later)
    assert two.recalls.find(_ONE.key) == _ONE


async def test_a_recall_of_another_tenant_is_not_found() -> None:
    before, after = await make_states(2)
    await before.recalls.secure([_ONE])
    assert await after.recalls.load("other", [_ONE.key]) == []


async def test_what_heads_name_comes_with_one_trip() -> None:
    before, after = await make_states(2)
    await before.recalls.secure([_ONE, _OTHER])
    trip = Trip(after.store)
    after.recalls.ask(trip, "t", (_ONE.key, _OTHER.key))
    await trip.run()
    assert [after.recalls.find(each.key) for each in (_ONE, _OTHER)] == [_ONE, _OTHER]


async def test_what_is_in_use_is_written_again_before_it_expires() -> None:
    now = [0.0]
    store = await make_store()
    recalls = make_state(store, keep_seconds=40.0, clock=lambda: now[0]).recalls
    await recalls.secure([_ONE])
    name = stored_key("recall", _ONE.key)
    store.delete(name)
    recalls.refresh([_ONE])
    assert await store.read(name) is None
    now[0] = 10.0
    recalls.refresh([_ONE])
    assert await store.read(name) is not None


async def test_a_tenant_and_a_conversation_leave_memory() -> None:
    (state,) = await make_states(1)
    mine: Recall = replace(_ONE, owner="u")
    for recall in (mine, _OTHER):
        state.recalls.hold(recall)
    assert state.recalls.size_bytes > 0
    state.recalls.forget(make_tag("u"))
    assert state.recalls.find(mine.key) is None
    assert state.recalls.find(_OTHER.key) == _OTHER
    state.recalls.forget_some([_OTHER.key])
    assert state.recalls.size_bytes == 0
