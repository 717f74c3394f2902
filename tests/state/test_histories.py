"""How answered requests ended, in memory and in the store."""

from dataclasses import replace

from gateway.core.history.conversation import Conversation
from gateway.core.history.trimmed import STORED_LINKS, HistoryEnd, HistorySource, find_end_key
from gateway.state.histories import Histories
from gateway.state.trip import Trip
from gateway.store import Store
from gateway.store.keys import make_tag
from tests.builders.chat import converse
from tests.builders.state import make_head, make_storage, make_store
from tests.builders.trimmed import say
from tests.toy.shared_store import ToyServer

_SCOPE = HistorySource(b"scope", is_named=True)


async def load(store: Store, histories: Histories, *keys: str, owner: str = "t") -> HistoryEnd | None:
    trip = Trip(store)
    found = histories.ask(trip, owner, keys)
    await trip.run()
    return histories.check(found.record) if found.record is not None else None


def key_of(conversation: Conversation) -> str:
    key = find_end_key(_SCOPE, conversation)
    assert key is not None
    return key


async def test_a_request_is_found_by_its_key_until_its_branch_goes_on() -> None:
    histories = Histories(make_storage(await make_store()))
    first, second = converse(say(5)), converse(say(6))
    histories.record("t", "branch", key_of(first), first)
    histories.record("t", "branch", key_of(first), first)
    found = histories.find(key_of(first))
    assert found is not None and (found.length, found.known, found.is_crowded) == (21, 21, False)
    histories.record("t", "branch", key_of(second), second)
    assert histories.find(key_of(first)) is None
    assert histories.find(key_of(second)) is not None


async def test_two_histories_with_one_key_are_crowded_also_after_one_went_on() -> None:
    histories = Histories(make_storage(await make_store()))
    first = converse(say(5))
    other = converse([{"role": "user", "content": "Another task"}, *say(5)[1:]])
    assert key_of(first) == key_of(other)
    histories.record("t", "one", key_of(first), first)
    histories.record("t", "same", key_of(first), first)
    found = histories.find(key_of(first))
    assert found is not None and not found.is_crowded
    histories.record("t", "other", key_of(other), other)
    found = histories.find(key_of(first))
    assert found is not None and found.is_crowded
    later = converse([{"role": "user", "content": "Another task"}, *say(6)[1:]])
    histories.record("t", "other", key_of(later), later)
    found = histories.find(key_of(first))
    assert found is not None and found.is_crowded


async def test_a_history_that_comes_later_to_where_another_was_is_crowded() -> None:
    """The first one may come back there, by a request of before or after a restart."""
    store = await make_store()
    histories, first = Histories(make_storage(store)), converse(say(5))
    other = converse([{"role": "user", "content": "Another task"}, *say(5)[1:]])
    key = key_of(first)
    histories.record("t", "one", key, first)
    await histories.save(key, make_head(first))
    histories.record("t", "one", key_of(converse(say(6))), converse(say(6)))
    histories.record("t", "other", key, other)
    found, stored = histories.find(key), await load(store, histories, key)
    assert found is not None and found.is_crowded
    assert stored is not None and stored.is_crowded
    later = Histories(make_storage(store))
    later.record("t", "other", key, other)
    await later.save(key, make_head(other))
    stored = await load(store, Histories(make_storage(store)), key)
    assert stored is not None and stored.is_crowded


async def test_the_store_has_the_newest_end_of_a_branch_only_and_it_is_never_old() -> None:
    store = await make_store()
    histories = Histories(make_storage(store))
    ends = {turns: converse(say(turns)) for turns in (5, 8, 9)}
    assert histories.is_behind("one", len(ends[5].messages))
    for turns, is_old in ((5, False), (8, False), (9, True)):
        conversation = ends[turns]
        histories.record("t", "one", key_of(conversation), conversation)
        assert histories.is_behind("one", len(conversation.messages)) == (turns == 5 or is_old)
        if turns != 8:
            await histories.save(key_of(conversation), make_head(conversation, conversation="one"))
    later = Histories(make_storage(store))
    assert await load(store, later, key_of(ends[5])) is None
    assert await load(store, later, key_of(ends[9])) is not None


async def test_what_is_saved_is_loaded_by_its_tenant_only_and_holds_the_newest_links() -> None:
    store = await make_store()
    histories = Histories(make_storage(store))
    long = converse(say(40))
    key = key_of(long)
    near, far = make_head(long, covers=len(long.messages)), make_head(long, covers=len(long.messages) - 70)
    await histories.save(key, near)
    histories.record("t", "branch", key, long)
    await histories.save(key, near)
    later = Histories(make_storage(store))
    found = await load(store, later, "00", key)
    assert found is not None
    assert (found.key, len(found.sizes), found.known) == (key, len(long.messages), STORED_LINKS)
    await histories.save(key, replace(far, pivot="ab", batches=("cd",)))
    found = await load(store, later, key)
    assert found is not None and found.known == 70
    assert (found.pivot, found.batches) == ("ab", ("cd",))
    assert await load(store, later, key, owner="other") is None
    assert await load(store, later, "00") is None


async def test_a_key_that_the_store_does_not_have_is_not_asked_for_again_in_this_generation() -> None:
    store = ToyServer().connect()
    await store.open()
    histories = Histories(make_storage(store))
    for _ in range(3):
        assert await load(store, histories, "ab", "cd") is None
    assert store.trips == 1
    await store.mend()
    trips = store.trips
    assert await load(store, histories, "ab") is None
    assert store.trips == trips + 1


async def test_a_tenants_histories_are_forgotten() -> None:
    store = await make_store()
    histories, known = Histories(make_storage(store)), converse(say(5))
    histories.record("t", "one", key_of(known), known)
    histories.forget(make_tag("u"))
    assert histories.find(key_of(known)) is not None
    histories.forget(make_tag("t"))
    assert histories.find(key_of(known)) is None and not histories.has_seen(key_of(known))
