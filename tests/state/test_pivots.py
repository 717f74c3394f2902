import asyncio
from dataclasses import replace

import pytest

from gateway.core.history.head import Head
from gateway.core.history.pivot import Mark, Pivot
from gateway.state import State
from gateway.state.chain_places import ChainPlace
from gateway.state.pivots import Pivots
from gateway.state.records import render_record
from gateway.state.trip import Trip
from gateway.store import Store, StoreError
from gateway.store.keys import make_tag
from gateway.store.leases import Lease
from gateway.store.memory import MemoryStore
from tests.builders.chat import converse, make_batch, make_pivot
from tests.builders.state import make_head, make_state, make_store, stored_key
from tests.state.talk import TURN, talk
from tests.toy.running import wait_until
from tests.toy.shared_store import ToyServer


async def connect(server: ToyServer) -> State:
    """The state of one process."""
    store = server.connect()
    await store.open()
    return make_state(store)


async def test_a_saved_pivot_is_durable_and_every_longer_history_finds_it() -> None:
    store = await make_store()
    pivots = make_state(store).pivots
    pivot = make_pivot(talk(2), 3)
    await pivots.save(pivot)
    assert [key for key, _ in await store.scan("pivot:")] == [stored_key("pivot", pivot.key)]
    assert pivots.list_on_chain(talk(4)) == [pivot]
    assert pivots.list_on_chain(talk(0)) == []
    assert pivots.find(pivot.key) == pivot
    assert pivots.find(None) is None


async def test_a_pivot_that_is_held_in_memory_is_found_and_written_when_it_has_to_be() -> None:
    store = await make_store()
    pivots, pivot = make_state(store).pivots, make_pivot(talk(2), 3)
    pivots.hold(pivot)
    assert pivots.list_on_chain(talk(4)) == [pivot]
    assert await store.scan("pivot:") == []
    await pivots.secure(pivot, ())
    assert await make_state(store).pivots.load("t", pivot.key) == pivot


async def test_a_pivot_that_cannot_be_made_durable_is_not_used() -> None:
    store = await make_store()
    await store.close()
    pivots = make_state(store).pivots
    with pytest.raises(StoreError):
        await pivots.save(make_pivot(talk(2), 3))
    assert pivots.list_on_chain(talk(4)) == []


async def look(store: Store, pivots: Pivots, owner: str, head: Head | None = None) -> list[Pivot]:
    """What is known of a conversation of five turns after looking in the store."""
    trip = Trip(store)
    pivots.ask_newest(trip, owner, talk(5), is_known=head is not None)
    pivots.ask_named(trip, owner, head)
    await trip.run()
    return pivots.list_on_chain(talk(5))


async def test_after_a_restart_the_newest_pivot_and_the_one_that_a_head_names_are_found() -> None:
    store = await make_store()
    before = make_state(store).pivots
    named, between, newest = (make_pivot(talk(5), covers) for covers in (3, 5, 7))
    for pivot in (named, between, newest):
        await before.save(pivot)
    after, head = make_state(store).pivots, make_head(talk(5), pivot=named.key)
    assert after.lacks(head)
    assert await look(store, after, "t", head) == [named, newest]
    assert not after.lacks(head)


async def test_only_pivots_behind_those_in_memory_are_asked_for() -> None:
    store = await make_store()
    pivots, other = make_state(store).pivots, make_state(store).pivots
    early, late = make_pivot(talk(5), 3), make_pivot(talk(5), 7)
    await pivots.save(late)
    await other.save(early)
    assert await look(store, pivots, "t") == [late]
    assert await look(store, other, "t") == [early, late]


async def test_what_a_head_names_and_the_store_does_not_have_is_asked_for_once_in_a_generation() -> None:
    store = ToyServer().connect()
    await store.open()
    pivots, head = make_state(store).pivots, make_head(talk(5), pivot="ab", batches=("cd", "ef"))
    assert pivots.lacks(head)
    await look(store, pivots, "t", head)
    trips = store.trips
    assert not pivots.lacks(head)
    assert await pivots.load("t", "ab") is None
    assert await pivots.load_batches("t", ["cd"]) is None
    assert store.trips == trips
    await store.mend()
    assert pivots.lacks(head)


async def test_a_pivot_that_is_announced_is_asked_for_although_memory_has_one_under_its_key() -> None:
    """A summary has taken the place of a digest."""
    server = ToyServer()
    one, other = server.connect(), server.connect()
    for store in (one, other):
        await store.open()
    here, there = make_state(one), make_state(other)
    digest = make_pivot(talk(5), 3, is_digest=True)
    await here.pivots.save(digest)
    assert await there.pivots.load("t", digest.key) == digest
    summary = replace(digest, summary="By a model.", is_digest=False)
    await here.pivots.save(summary)
    await asyncio.sleep(0)
    assert there.news.find("t", talk(5)) == [ChainPlace(digest.key, 3)]
    trip = Trip(other)
    there.pivots.ask_pivot(trip, "t", digest.key)
    await trip.run()
    assert there.pivots.find(digest.key) == summary


async def test_a_pivot_that_memory_has_lost_is_looked_for_at_the_next_request_of_its_chain() -> None:
    store = await make_store()
    state = make_state(store, max_bytes=1_200)
    first, second = make_pivot(talk(5), 3), make_pivot(talk(5), 5)
    await state.pivots.save(first)
    assert state.news.find("t", talk(5)) == []
    await state.pivots.save(second)
    assert [state.pivots.find(first.key), state.pivots.find(second.key)] == [None, second]
    assert state.news.find("t", talk(5)) == [ChainPlace(first.key, 3)]


async def test_what_is_in_use_is_written_again_where_the_store_has_lost_it() -> None:
    server = ToyServer()
    store = server.connect()
    await store.open()
    pivots = make_state(store).pivots
    pivot, batch = make_pivot(talk(5), 3), make_batch(talk(2), [Mark(1)])
    await pivots.secure(pivot, [batch])
    written = dict(server.records)
    assert len(written) == 2
    server.records.clear()
    await pivots.secure(pivot, [batch])
    assert not server.records
    await store.mend()
    await pivots.secure(pivot, [batch])
    assert server.records.keys() == written.keys()


async def test_of_two_pivots_that_were_made_apart_the_one_that_was_stored_first_is_used() -> None:
    store = await make_store()
    one, other = make_state(store).pivots, make_state(store).pivots
    first, second = (make_pivot(talk(5), 3, summary=text) for text in ("One.", "Another."))
    one.hold(first)
    other.hold(second)
    await one.secure(first, ())
    await other.secure(second, ())
    assert one.find(first.key) == other.find(first.key) == first


async def test_a_digest_is_not_refreshed_where_another_process_may_have_replaced_it() -> None:
    store = ToyServer().connect()
    await store.open()
    pivots, digest = make_state(store).pivots, make_pivot(talk(5), 3, is_digest=True)
    pivots.hold(digest)
    pivots.refresh(digest, ())
    assert await store.scan("pivot:") == []


async def test_what_another_process_has_put_in_its_place_is_not_written_over() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    ours = make_pivot(talk(5), 3, summary="Ours.")
    await one.pivots.save(ours)
    theirs = replace(ours, summary="What a person asked for.", is_manual=True)
    await other.pivots.save(theirs)
    await wait_until(lambda: bool(one.news.find("t", talk(5))))
    one.pivots.refresh(ours, ())
    assert await other.pivots.load_newest("t", [ours.key]) == theirs
    assert await one.pivots.load("t", ours.key) == theirs


async def test_what_was_made_without_the_store_is_not_written_over_what_others_have_stored() -> None:
    server = ToyServer()
    store = server.connect()
    await store.open()
    one, other = make_state(store), await connect(server)
    ours, theirs = (make_pivot(talk(5), 3, summary=text) for text in ("Ours.", "Theirs."))
    store.cut()
    await one.pivots.save_new(ours)
    await other.pivots.save(theirs)
    await store.mend()
    assert not one.pivots.is_secure(ours, ())
    one.pivots.refresh(ours, ())
    await one.pivots.secure(ours, ())
    assert one.pivots.find(ours.key) == theirs and one.pivots.is_secure(ours, ())
    assert await other.pivots.load_newest("t", [ours.key]) == theirs


async def test_a_summary_in_use_is_written_again_as_it_was_read() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    pivot = make_pivot(talk(5), 3)
    await one.pivots.save(pivot)
    await other.pivots.load("t", pivot.key)
    written = server.records.pop(stored_key("pivot", pivot.key))
    other.pivots.refresh(pivot, ())
    await wait_until(lambda: stored_key("pivot", pivot.key) in server.records)
    assert server.records[stored_key("pivot", pivot.key)].value == written.value


async def test_pivots_and_batches_of_another_owner_are_not_found() -> None:
    store = await make_store()
    conversation = talk(2)
    pivot, batch = make_pivot(conversation, 3, owner="u"), make_batch(conversation, [Mark(1)], owner="u")
    store.write(stored_key("pivot", pivot.key), render_record("u", pivot), keep_seconds=60)
    store.write(stored_key("batch", batch.key), render_record("u", batch), keep_seconds=60)
    pivots = make_state(store).pivots
    assert await look(store, pivots, "t", make_head(conversation, pivot=pivot.key)) == []
    assert await pivots.load_batches("t", [batch.key]) is None


async def test_after_a_restart_the_batches_that_a_head_names_are_found_in_their_order() -> None:
    store = await make_store()
    before = make_state(store).pivots
    batches = [make_batch(talk(turns), [Mark(1)], saved_tokens=turns) for turns in (1, 2)]
    for batch in batches:
        before.save_batch(batch)
    after = make_state(store).pivots
    keys = [batch.key for batch in reversed(batches)]
    assert await after.load_batches("t", keys) == batches[::-1]
    assert await after.load_batches("t", [*keys, "00"]) is None


async def test_a_manual_pivot_is_active_until_the_head_names_it() -> None:
    pivots = make_state(await make_store()).pivots
    head = make_head(talk(3))
    made = make_pivot(talk(3), 3)
    await pivots.save(made)
    pivots.activate_manual(made, None)
    found = pivots.apply_manual(talk(4), head)
    # Its usage was counted for the messages without the pivot.
    assert found is not None and (found.pivot, found.total_tokens) == (made.key, 0)
    assert pivots.apply_manual(talk(4), None) is None
    assert pivots.apply_manual(talk(4), replace(head, owner="u")) == replace(head, owner="u")
    assert pivots.apply_manual(converse([{"role": "user", "content": "Else."}]), head) == head
    assert pivots.apply_manual(talk(1), head) == head
    knowing = make_head(talk(4), pivot=made.key)
    assert pivots.apply_manual(talk(5), knowing) == knowing
    assert pivots.apply_manual(talk(5), head) == head


async def test_a_manual_pivot_is_active_in_every_process_that_loads_it() -> None:
    store = await make_store()
    made = make_pivot(talk(5), 3, is_manual=True)
    await make_state(store).pivots.save(made)
    there, head = make_state(store).pivots, make_head(talk(5))
    assert there.apply_manual(talk(5), head) == head
    await look(store, there, "t", head)
    found = there.apply_manual(talk(5), head)
    assert found is not None and found.pivot == made.key


async def test_a_manual_pivot_is_active_after_a_restart() -> None:
    store = await make_store()
    before, made = make_state(store), make_pivot(talk(3), 3)
    before.pivots.activate_manual(made, make_head(talk(3)))
    before.heads.flush()
    found = await make_state(store).heads.load("t", talk(4), "s")
    assert found is not None and (found.pivot, found.total_tokens) == (made.key, 0)


async def test_a_tenants_pivots_are_forgotten() -> None:
    pivots = make_state(await make_store()).pivots
    made, head = make_pivot(talk(5), 3, is_manual=True), make_head(talk(5))
    await pivots.save(made)
    pivots.forget(make_tag("u"))
    assert pivots.list_on_chain(talk(5)) == [made]
    pivots.forget(make_tag("t"))
    assert pivots.list_on_chain(talk(5)) == []
    assert pivots.apply_manual(talk(5), head) == head


async def test_heads_sent_with_a_pivot_are_found_under_any_of_its_keys() -> None:
    state = make_state(await make_store())
    pivot = make_pivot(talk(4), 3)
    again, other = replace(pivot, key="aa"), make_pivot(talk(4), 5)
    for each in (pivot, again, other):
        await state.pivots.save(each)
    heads = [make_head(talk(turns), pivot=each.key) for turns, each in ((1, pivot), (2, again), (3, other))]
    for head in heads:
        state.heads.hold(head)
    found = state.pivots.find_followers(pivot)
    assert sorted(found, key=lambda head: head.length) == heads[:2]


async def test_a_pivot_that_is_used_after_a_restart_lives_on() -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    await store.open()
    pivots = make_state(store).pivots
    used, unused = make_pivot(talk(4), 3), make_pivot(talk(4), 5)
    batch = make_batch(talk(4), [Mark(1)])
    await pivots.save(used)
    await pivots.save(unused)
    pivots.save_batch(batch)
    now[0] = 50.0
    make_state(store).pivots.refresh(used, [batch])
    now[0] = 70.0
    assert [key for key, _ in await store.scan("pivot:")] == [stored_key("pivot", used.key)]
    assert [key for key, _ in await store.scan("batch:")] == [stored_key("batch", batch.key)]


async def test_pivots_and_batches_stay_within_their_bounds() -> None:
    pivots = make_state(await make_store(), max_bytes=5_000).pivots
    for number in range(50):
        conversation = converse([{"role": "user", "content": str(number)}, *TURN])
        pivot = make_pivot(conversation, 2, summary="x" * 200)
        await pivots.save(pivot)
        pivots.save_batch(make_batch(conversation, [Mark(1)]))
    assert pivots.find(pivot.key) is not None
    assert pivots.size_bytes <= 2 * 5_000


# Pivots of several processes


async def test_a_pivot_under_a_lease_is_stored_and_announced() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    pivot = make_pivot(talk(2), 3)
    lease = await one.leases.claim("t", pivot.key)
    assert isinstance(lease, Lease)
    assert await one.pivots.save_leased(lease, pivot)
    await asyncio.sleep(0)
    assert other.news.find("t", talk(4)) == [ChainPlace(pivot.key, 3)]
    assert await other.pivots.load_newest("t", [pivot.key]) == pivot


async def test_a_pivot_whose_lease_was_lost_is_not_stored_and_not_used() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    pivot = make_pivot(talk(2), 3)
    lease = await one.leases.claim("t", pivot.key)
    assert isinstance(lease, Lease)
    server.end_leases()
    assert not await one.pivots.save_leased(lease, pivot)
    assert one.pivots.find(pivot.key) is None
    assert await other.pivots.load_newest("t", [pivot.key]) is None


async def test_of_two_digests_of_the_same_messages_the_first_one_is_used_by_both() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    first, second = (make_pivot(talk(2), 3, is_digest=True, summary=text) for text in ("One.", "Two."))
    assert await one.pivots.save_new(first) is first
    assert await other.pivots.save_new(second) == first
    assert other.pivots.find(second.key) == first


async def test_a_digest_never_replaces_a_summary_of_another_process() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    summary = make_pivot(talk(2), 3)
    digest = replace(summary, is_digest=True, summary="A digest.")
    await one.pivots.save(summary)
    other.pivots.hold(digest)
    await other.pivots.secure(digest, ())
    assert other.pivots.find(digest.key) == summary
    assert await one.pivots.load_newest("t", [summary.key]) == summary


async def test_a_summary_that_is_made_here_meanwhile_wins_over_a_digest() -> None:
    server = ToyServer()
    state = await connect(server)
    summary = make_pivot(talk(2), 3)
    digesting = asyncio.create_task(state.pivots.save_new(replace(summary, is_digest=True)))
    lease = await state.leases.claim("t", summary.key)
    assert isinstance(lease, Lease)
    await state.pivots.save_leased(lease, summary)
    await digesting
    assert state.pivots.find(summary.key) == summary
    assert await (await connect(server)).pivots.load("t", summary.key) == summary


async def test_a_summary_in_the_store_takes_the_place_of_a_digest_in_memory() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    summary = make_pivot(talk(2), 3)
    await one.pivots.save(summary)
    other.pivots.hold(replace(summary, is_digest=True))
    assert await other.pivots.load_newest("t", [summary.key]) == summary


async def test_of_several_keys_the_first_one_with_a_pivot_counts() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    short, long = (make_pivot(talk(5), covers) for covers in (3, 7))
    await one.pivots.save(long)
    other.pivots.hold(short)
    assert await other.pivots.load_newest("t", [long.key, short.key]) == long
    assert await other.pivots.load_newest("t", [short.key]) == short
    assert await other.pivots.load_newest("t", []) is None


async def test_without_the_store_a_pivot_is_used_here_and_stored_later_unless_there_is_one() -> None:
    server = ToyServer()
    store = server.connect()
    await store.open()
    alone, other = make_state(store), await connect(server)
    ours, ours_too = (make_pivot(talk(5), covers, summary="Ours.") for covers in (3, 7))
    store.cut()
    for pivot in (ours, ours_too):
        lease = await alone.leases.claim("t", pivot.key)
        assert isinstance(lease, Lease)
        assert await alone.pivots.save_leased(lease, pivot)
    assert await alone.pivots.save_new(make_pivot(talk(5), 5, is_digest=True)) is not None
    theirs = replace(ours, summary="Theirs.")
    await other.pivots.save(theirs)
    await store.mend()
    third = await connect(server)
    assert await third.pivots.load("t", ours.key) == theirs
    assert await third.pivots.load("t", ours_too.key) == ours_too
