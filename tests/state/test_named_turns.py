"""Responses that later requests may name, after a restart."""

from gateway.state.named_turns import NamedTurn, NamedTurns
from gateway.store.keys import make_tag
from tests.builders.state import make_storage, make_store
from tests.toy.shared_store import ToyServer

TURN = NamedTurn("resp_0", b'{"input":"\xc3\xa9\xff"}', (b'{"a":1}', b"{}"))


async def test_a_turn_is_found_again_by_its_tenant_at_its_upstream() -> None:
    storage = make_storage(await make_store())
    NamedTurns(storage).save("t", "u", "resp_1", TURN)
    named = NamedTurns(storage)
    assert await named.load("t", "u", "resp_1") == TURN
    for owner, upstream, name in (("v", "u", "resp_1"), ("t", "v", "resp_1"), ("t", "u", "resp_2")):
        assert await named.load(owner, upstream, name) is None


async def test_an_item_is_no_turn() -> None:
    named = NamedTurns(make_storage(await make_store()))
    named.save_item("t", "u", "msg_1", b'{"role":"user"}')
    assert await named.load_items("t", "u", ["msg_2", "msg_1"]) == {"msg_1": b'{"role":"user"}'}
    assert await named.load_items("v", "u", ["msg_1"]) == {}
    assert await named.load("t", "u", "msg_1") is None


async def test_what_is_too_large_is_not_written() -> None:
    named = NamedTurns(make_storage(await make_store()))
    named.save("t", "u", "resp_1", TURN._replace(own=b"x" * (2 << 20)))
    named.save_item("t", "u", "msg_1", b"x" * ((2 << 20) + 1))
    assert await named.load("t", "u", "resp_1") is None
    assert await named.load_items("t", "u", ["msg_1"]) == {}


async def test_a_turn_in_use_is_written_once_a_day() -> None:
    now = [0.0]
    storage = make_storage(await make_store(), keep_seconds=1e6, clock=lambda: now[0])
    named = NamedTurns(storage)
    assert named.is_due("t", "u", "resp_1")
    named.save("t", "u", "resp_1", TURN)
    assert not named.is_due("t", "u", "resp_1") and named.is_due("v", "u", "resp_1")
    now[0] = 86_400.0
    assert named.is_due("t", "u", "resp_1")


async def test_a_damaged_record_is_absent() -> None:
    store = await make_store()
    named = NamedTurns(make_storage(store))
    named.save("t", "u", "resp_1", TURN)
    ((key, value),) = await store.scan("turn:")
    store.write(key, value.replace(b"eyJ", b"?!?"), keep_seconds=60)
    assert await named.load("t", "u", "resp_1") is None


async def test_several_turns_are_loaded_in_one_round_trip() -> None:
    store = ToyServer().connect()
    await store.open()
    storage = make_storage(store)
    for name in ("resp_1", "resp_2"):
        NamedTurns(storage).save("t", "u", name, TURN._replace(earlier=("resp_0",)))
    before, named = store.reads, NamedTurns(storage)
    found = await named.load_all("t", "u", ["resp_2", "resp_3", "resp_1"])
    assert found == dict.fromkeys(("resp_1", "resp_2"), TURN._replace(earlier=("resp_0",)))
    assert store.reads == before + 1


async def test_in_a_new_generation_and_after_a_purge_a_turn_in_use_is_due_again() -> None:
    store = ToyServer().connect()
    await store.open()
    named = NamedTurns(make_storage(store))
    named.save("t", "u", "resp_1", TURN)
    named.save("v", "u", "resp_1", TURN)
    named.forget(make_tag("t"))
    assert named.is_due("t", "u", "resp_1") and not named.is_due("v", "u", "resp_1")
    await store.mend()
    assert named.is_due("v", "u", "resp_1")
