"""Pivots: found on their own chain by their own tenant, durable before use, and one for all processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import find_open_group, is_boundary
from gateway.core.history.head import Head
from gateway.core.history.lists import NAMES_HEADING
from gateway.core.history.pivot import Mark, Pivot, edit_pivot
from gateway.state import State
from gateway.state.news import ChainPlace
from gateway.store.interface import Key, Lease, StoreError, Unknown
from gateway.store.keys import make_tag
from gateway.store.sqlite import SqliteStore
from tests.builders import state as builders
from tests.builders.chat import read
from tests.builders.state import load_head, make_state, make_store, save_pivot
from tests.decisions.builders import JSON, conversations, make_batch, make_head, make_pivot, render
from tests.store.talk import TURN, talk
from tests.toy.running import wait_until
from tests.toy.shared_store import ToyServer


async def connect(server: ToyServer) -> State:
    """The state of one process."""
    return (await builders.connect(server))[1]


@given(conversations(min_turns=2), st.data())
async def test_a_pivot_and_a_head_are_found_by_histories_that_begin_with_what_they_stand_for(
    messages: list[JSON], data: st.DataObject
) -> None:
    """And by no other: not if one message differs, not by a shorter one, and not for another tenant."""
    made = read(render(messages)).conversation
    places = [place for place in range(1, len(made.messages) + 1) if is_boundary(made, place)]
    leading, covers = len(made.leading), data.draw(st.sampled_from(places))
    store = await make_store()
    await save_pivot(make_state(store), make_pivot(made, covers))
    await make_state(store).heads.save_durably(make_head(made, length=covers))
    sent = list(messages)
    at = data.draw(st.one_of(st.none(), st.integers(leading, len(messages) - 1)))
    if at is not None:
        sent[at] = {**sent[at], "x-changed": 1}
    sent = [*sent[: data.draw(st.integers(leading, len(sent)))], *TURN]
    begins = sent[leading : leading + covers] == messages[leading : leading + covers]
    for owner in ("t", "u"):
        asked, state = read(render(sent), owner).conversation, make_state(store)
        trip = state.begin_trip(owner)
        state.pivots.ask_newest(trip, asked, is_known=False)
        await trip.run()
        found = state.pivots.list_on_chain(asked)
        # Requests and cuts end between turns, so that only these places are asked for.
        begins_there = owner == "t" and begins and is_boundary(asked, covers)
        assert bool(found) == (begins_there and covers <= find_open_group(asked))
        assert (await load_head(state, asked, owner) is not None) == begins_there


async def test_a_pivot_that_cannot_be_made_durable_is_not_used() -> None:
    store = await make_store()
    await store.close()
    pivots = make_state(store).pivots
    with pytest.raises(StoreError):
        await pivots.save_new(make_pivot(talk(2), 3))
    assert pivots.list_on_chain(talk(4)) == []


async def look(state: State, owner: str, head: Head | None = None) -> list[Pivot]:
    """What is known of a conversation of five turns after looking in the store."""
    trip = state.begin_trip(owner)
    state.pivots.ask_newest(trip, talk(5), is_known=False)
    state.pivots.ask_named(trip, owner, head)
    await trip.run()
    return state.pivots.list_on_chain(talk(5))


async def test_after_a_restart_the_newest_pivot_and_the_one_that_a_head_names_are_found() -> None:
    store = await make_store()
    state = make_state(store)
    named, between, newest = (make_pivot(talk(5), covers) for covers in (3, 5, 7))
    for pivot in (named, between, newest):
        await save_pivot(state, pivot)
    after, head = make_state(store), make_head(talk(5), pivot=named.key)
    assert after.pivots.lacks(head)
    assert await look(after, "t", head) == [named, newest]
    assert not after.pivots.lacks(head)


async def test_of_two_pivots_that_were_made_apart_the_one_that_was_stored_first_is_used() -> None:
    store = await make_store()
    one, other = make_state(store).pivots, make_state(store).pivots
    first, second = (make_pivot(talk(5), 3, summary=text) for text in ("One.", "Another."))
    one.hold(first)
    other.hold(second)
    await one.secure([first])
    await other.secure([second])
    assert one.find(first.key) == other.find(first.key) == first


async def test_what_another_process_has_put_in_its_place_is_not_written_over() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    ours = make_pivot(talk(5), 3, summary="Ours.")
    await save_pivot(one, ours)
    theirs = replace(ours, summary="What a person asked for.", is_manual=True)
    await save_pivot(other, theirs)
    await wait_until(lambda: bool(find_news(one)))
    one.pivots.refresh([ours])
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
    await save_pivot(other, theirs)
    await store.mend()
    assert not one.pivots.is_secure([ours])
    one.pivots.refresh([ours])
    await one.pivots.secure([ours])
    assert one.pivots.find(ours.key) == theirs and one.pivots.is_secure([ours])
    assert await other.pivots.load_newest("t", [ours.key]) == theirs


async def test_pivots_and_batches_of_another_owner_are_not_found() -> None:
    store = await make_store()
    conversation = talk(2)
    pivot, batch = make_pivot(conversation, 3, owner="u"), make_batch(conversation, [Mark(1)], owner="u")
    await save_pivot(make_state(store), pivot)
    await make_state(store).pivots.secure([batch])
    state = make_state(store)
    assert await look(state, "t", make_head(conversation, pivot=pivot.key)) == []
    assert await state.pivots.load_batches("t", [batch.key]) is None


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


async def test_a_pivot_that_is_used_after_a_restart_lives_on() -> None:
    now = [0.0]
    store = await make_store(clock=lambda: now[0])
    state = make_state(store)
    pivots = state.pivots
    used, unused = make_pivot(talk(4), 3), make_pivot(talk(4), 5)
    batch = make_batch(talk(4), [Mark(1)])
    await save_pivot(state, used)
    await save_pivot(state, unused)
    pivots.save_batch(batch)
    now[0] = 50.0
    make_state(store).pivots.refresh([used, batch])
    now[0] = 70.0
    assert store.list_names("pivot") == [used.key]
    assert store.list_names("batch") == [batch.key]


async def test_a_pivot_whose_lease_was_lost_is_not_stored_and_not_used() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    pivot = make_pivot(talk(2), 3)
    lease = await one.single.claim("t", pivot.key)
    assert isinstance(lease, Lease)
    server.end_leases()
    assert await one.pivots.save_leased(lease, pivot) is None
    assert one.pivots.find(pivot.key) is None
    assert await other.pivots.load_newest("t", [pivot.key]) is None


async def test_a_digest_never_replaces_a_summary_of_another_process() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    summary = make_pivot(talk(2), 3)
    digest = replace(summary, is_digest=True, summary="A digest.")
    await save_pivot(one, summary)
    other.pivots.hold(digest)
    await other.pivots.secure([digest])
    assert other.pivots.find(digest.key) == summary
    assert await one.pivots.load_newest("t", [summary.key]) == summary


async def test_a_summary_that_is_made_here_meanwhile_wins_over_a_digest() -> None:
    server = ToyServer()
    state = await connect(server)
    summary = make_pivot(talk(2), 3)
    digesting = asyncio.create_task(state.pivots.save_new(replace(summary, is_digest=True)))
    lease = await state.single.claim("t", summary.key)
    assert isinstance(lease, Lease)
    await state.pivots.save_leased(lease, summary)
    await digesting
    assert state.pivots.find(summary.key) == summary
    assert await (await connect(server)).pivots.load("t", summary.key) == summary


async def test_a_summary_in_the_store_takes_the_place_of_a_digest_in_memory() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    summary = make_pivot(talk(2), 3)
    await save_pivot(one, summary)
    # Its news are old when this process makes a digest.
    await asyncio.sleep(0)
    other.pivots.hold(replace(summary, is_digest=True))
    assert await other.pivots.load_newest("t", [summary.key]) == summary


# Edits by a person


_PIVOT = make_pivot(talk(2), 3)


async def edit(state: State, pivot: Pivot, text: str) -> Pivot:
    edited = edit_pivot(pivot, text, 0, 0, 5.0)
    async with state.single.hold(pivot.owner, pivot.key, 20.0) as lease:
        assert await state.pivots.save_edited(lease, edited)
    return edited


@pytest.mark.parametrize("is_shared", [False, True])
async def test_two_never_hold_one_name_at_once(is_shared: bool) -> None:
    server, store = ToyServer(), await make_store()
    one = await connect(server) if is_shared else make_state(store)
    other = await connect(server) if is_shared else one
    order: list[str] = []
    is_held = asyncio.Event()

    async def work(state: State, name: str) -> None:
        async with state.single.hold("t", "aa", 20.0):
            order.append(f"{name} begins")
            is_held.set()
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    first = asyncio.create_task(work(one, "one"))
    await is_held.wait()
    await asyncio.gather(first, work(other, "other"))
    assert order == ["one begins", "one ends", "other begins", "other ends"]


async def test_a_pivot_of_an_earlier_gateway_is_sent_in_the_bytes_it_was_sent_in() -> None:
    """It had its lists in its text, and some fields that are gone."""
    text = f"We worked.\n\n{NAMES_HEADING}\n- src/: a.py ×2, b.py"
    written = msgspec.to_builtins(replace(_PIVOT, framing="A summary.", summary=text, recalled="Parts."))
    del written["lists"], written["original"]
    store = await make_store()
    key = Key(make_tag("t"), "pivot", _PIVOT.key)
    store.put(key, msgspec.msgpack.encode({**written, "unknown": 1}), 60)
    found = await make_state(store).pivots.load("t", _PIVOT.key)
    assert found is not None and found.text == f"A summary.\n\n{text}\n\nParts."


async def test_it_is_in_the_store_or_it_is_refused() -> None:
    store = await make_store()
    state = make_state(store)
    await save_pivot(state, _PIVOT)
    await store.close()
    with pytest.raises(StoreError):
        await edit(state, _PIVOT, "By a person.")
    assert state.pivots.find(_PIVOT.key) == _PIVOT


@pytest.mark.parametrize("tag", [make_tag("u"), make_tag("t")])
async def test_what_is_deleted_meanwhile_makes_only_its_own_owner_ask_again(tag: str) -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    made = make_pivot(talk(5), 3)
    await save_pivot(one, made)
    other.news.places.add("news", make_tag("t"), ChainPlace(made.key, made.covers))
    asked = asyncio.create_task(look_where_told(other))
    await asyncio.sleep(0)
    other.news.on_purged(tag, "d", 1)
    if tag == make_tag("t"):
        with pytest.raises(Unknown):
            await asked
        assert find_news(other)
    else:
        assert await asked == [made]


async def test_what_a_cancelled_request_would_have_looked_up_is_looked_up_by_the_next() -> None:
    server = ToyServer()
    one, other = await connect(server), await connect(server)
    made = make_pivot(talk(5), 3)
    await save_pivot(one, made)
    asked = asyncio.create_task(look_where_told(other))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await look_where_told(other) == [made]


def find_news(state: State) -> list[ChainPlace]:
    return state.news.places.find("news", make_tag("t"), talk(5))


async def look_where_told(state: State) -> list[Pivot]:
    trip = state.begin_trip("t")
    news = find_news(state)
    for place in news:
        state.pivots.ask_pivot(trip, "t", place.key)
    trip.on_done(partial(state.news.places.settle, "news", make_tag("t"), news))
    await trip.run()
    return state.pivots.list_on_chain(talk(5))


@pytest.mark.parametrize("way", ["save_new", "secure"])
async def test_what_is_deleted_while_it_is_written_is_nowhere_afterwards(way: str) -> None:
    async with running_sqlite() as store:
        state, made = make_state(store), make_pivot(talk(5), 3)
        if way == "secure":
            state.pivots.hold(made)
            writing: asyncio.Task[object] = asyncio.create_task(state.pivots.secure([made]))
        else:
            writing = asyncio.create_task(state.pivots.save_new(made))
        await asyncio.sleep(0)
        await store.delete(make_tag("t"), made.conversation)
        with suppress(StoreError):
            await writing
        assert state.pivots.find(made.key) is None and not state.pivots.is_secure([made])
        assert await make_state(store).pivots.load("t", made.key) is None


async def test_a_head_that_is_deleted_while_it_is_written_is_not_taken_for_durable() -> None:
    async with running_sqlite() as store:
        heads, head = make_state(store).heads, make_head(talk(3))
        writing = asyncio.create_task(heads.save_durably(head))
        await asyncio.sleep(0)
        await store.delete(make_tag("t"), head.conversation)
        with suppress(StoreError):
            await writing
        assert not heads.is_durable(head)


@asynccontextmanager
async def running_sqlite() -> AsyncIterator[SqliteStore]:
    store = SqliteStore(None)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
