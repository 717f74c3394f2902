from dataclasses import replace

import pytest

from gateway.core.history.cleared_results import ResultHashes, ResultHashesRecord
from gateway.core.history.pivot import Mark
from gateway.state.records import render_record
from gateway.store import StoreError
from gateway.store.memory import MemoryStore
from tests.builders.chat import converse, make_batch, make_pivot
from tests.builders.state import make_head, make_state, make_store
from tests.state.talk import TURN, talk


async def test_a_saved_pivot_is_durable_and_every_longer_history_finds_it() -> None:
    store = await make_store()
    pivots = make_state(store).pivots
    pivot = make_pivot(talk(2), 3)
    await pivots.save(pivot)
    assert [key for key, _ in await store.scan("pivot:")] == [f"pivot:{pivot.key}"]
    assert await pivots.load_on_chain("t", talk(4), "b", None) == [pivot]
    assert await pivots.load_on_chain("t", talk(0), "b", None) == []
    assert pivots.find(pivot.key) == pivot
    assert pivots.find(None) is None


async def test_a_pivot_that_is_held_in_memory_is_found_and_written_when_it_has_to_be() -> None:
    store = await make_store()
    pivots, pivot = make_state(store).pivots, make_pivot(talk(2), 3)
    pivots.hold(pivot)
    assert await pivots.load_on_chain("t", talk(4), "b", None) == [pivot]
    assert await store.scan("pivot:") == []
    await pivots.save_held(pivot)
    assert await make_state(store).pivots.load("t", pivot.key) == pivot


async def test_a_pivot_that_cannot_be_made_durable_is_not_used() -> None:
    store = await make_store()
    await store.close()
    pivots = make_state(store).pivots
    with pytest.raises(StoreError):
        await pivots.save(make_pivot(talk(2), 3))
    assert await pivots.load_on_chain("t", talk(4), "b", None) == []


async def test_after_a_restart_the_newest_pivot_and_the_one_that_a_head_names_are_found() -> None:
    store = await make_store()
    before = make_state(store).pivots
    named, between, newest = (make_pivot(talk(5), covers) for covers in (3, 5, 7))
    for pivot in (named, between, newest):
        await before.save(pivot)
    assert await make_state(store).pivots.load_on_chain("t", talk(5), "b", named.key) == [named, newest]


async def test_the_store_is_searched_once_for_a_branch() -> None:
    store = await make_store()
    pivots = make_state(store).pivots
    assert await pivots.load_on_chain("t", talk(5), "b", None) == []
    later = make_pivot(talk(5), 3)
    await make_state(store).pivots.save(later)
    assert await pivots.load_on_chain("t", talk(5), "b", None) == []
    assert await pivots.load_on_chain("t", talk(5), "another", None) == [later]


async def test_a_pivot_that_a_head_names_is_loaded_again_when_memory_has_lost_it() -> None:
    pivots = make_state(await make_store(), max_bytes=1_200).pivots
    first, second = make_pivot(talk(5), 3), make_pivot(talk(5), 5)
    await pivots.load_on_chain("t", talk(5), "b", None)
    await pivots.save(first)
    await pivots.save(second)
    assert [pivots.find(first.key), pivots.find(second.key)] == [None, second]
    assert first in await pivots.load_on_chain("t", talk(5), "b", first.key)


async def test_pivots_and_batches_of_another_owner_are_not_found() -> None:
    store = await make_store()
    conversation = talk(2)
    pivot, batch = make_pivot(conversation, 3, owner="u"), make_batch(conversation, [Mark(1)], owner="u")
    store.write(f"pivot:{pivot.key}", render_record("u", pivot), keep_seconds=60)
    store.write(f"batch:{batch.key}", render_record("u", batch), keep_seconds=60)
    pivots = make_state(store).pivots
    assert await pivots.load_on_chain("t", conversation, "b", pivot.key) == []
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
    pivots.activate_manual("c", made, None)
    found = pivots.apply_manual("c", talk(4), head)
    # Its usage was counted for the messages without the pivot.
    assert found is not None and (found.pivot, found.total_tokens) == (made.key, 0)
    assert pivots.apply_manual("another branch", talk(4), head) == head
    assert pivots.apply_manual("c", converse([{"role": "user", "content": "Else."}]), head) == head
    knowing = make_head(talk(4), pivot=made.key)
    assert pivots.apply_manual("c", talk(5), knowing) == knowing
    assert pivots.apply_manual("c", talk(5), head) == head


async def test_a_manual_pivot_is_active_after_a_restart() -> None:
    store = await make_store()
    before, made = make_state(store), make_pivot(talk(3), 3)
    before.pivots.activate_manual("c", made, make_head(talk(3)))
    before.heads.flush()
    found = await make_state(store).heads.load("t", talk(4), "s")
    assert found is not None and (found.pivot, found.total_tokens) == (made.key, 0)


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


async def test_the_hashes_of_the_first_key_that_has_any_are_found_by_their_owner() -> None:
    store = await make_store()
    hashes = ResultHashesRecord(
        owner="t", key="cd", covers=3, outlines=(ResultHashes(pivot="ef", conversation="c", results="01"),)
    )
    make_state(store).pivots.save_result_hashes(hashes)
    pivots = make_state(store).pivots
    assert await pivots.load_result_hashes("t", ["ab", "cd"]) == hashes
    assert await pivots.load_result_hashes("t", ["ab"]) is None
    assert await pivots.load_result_hashes("t", []) is None
    assert await pivots.load_result_hashes("u", ["cd"]) is None


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
    assert [key for key, _ in await store.scan("pivot:")] == [f"pivot:{used.key}"]
    assert [key for key, _ in await store.scan("batch:")] == [f"batch:{batch.key}"]


async def test_pivots_and_batches_stay_within_their_bounds() -> None:
    pivots = make_state(await make_store(), max_bytes=5_000).pivots
    for number in range(50):
        conversation = converse([{"role": "user", "content": str(number)}, *TURN])
        pivot = make_pivot(conversation, 2, summary="x" * 200)
        await pivots.save(pivot)
        pivots.save_batch(make_batch(conversation, [Mark(1)]))
    assert pivots.find(pivot.key) is not None
    assert pivots.size_bytes <= 2 * 5_000
