"""Versions of summaries, and who may change one at a time."""

import asyncio
from dataclasses import replace

import pytest

from gateway.core.history.pivot import Pivot
from gateway.core.history.versions import edit_pivot
from gateway.state import State
from gateway.state.summary_edits import SummaryEdits
from gateway.store import StoreError
from tests.builders.chat import make_pivot
from tests.builders.state import make_state, make_store
from tests.state.talk import talk
from tests.toy.shared_store import ToyServer

_PIVOT = make_pivot(talk(2), 3)


async def connect(server: ToyServer) -> State:
    store = server.connect()
    await store.open()
    return make_state(store)


async def edit(state: State, pivot: Pivot, text: str) -> Pivot:
    edited = edit_pivot(pivot, text, 0, 0, 5.0)
    async with state.edits.hold(pivot.owner, [pivot.key]) as leases:
        assert await state.edits.save(leases[pivot.key], pivot, edited)
    return edited


async def test_both_versions_survive_a_restart() -> None:
    store = await make_store()
    state = make_state(store)
    await state.pivots.save(_PIVOT)
    edited = await edit(state, _PIVOT, "By a person.")
    assert state.pivots.find(_PIVOT.key) == edited
    later = make_state(store)
    assert await later.pivots.load("t", _PIVOT.key) == edited
    versions = await later.edits.load_versions("t", _PIVOT.key)
    assert [each.text for each in versions.versions] == [_PIVOT.summary]


async def test_a_summary_that_nobody_edited_has_no_versions() -> None:
    state = make_state(await make_store())
    assert (await state.edits.load_versions("t", _PIVOT.key)).versions == ()


async def test_other_processes_use_it_from_the_next_look_on() -> None:
    server = ToyServer()
    here, there = await connect(server), await connect(server)
    await here.pivots.save(_PIVOT)
    assert await there.pivots.load("t", _PIVOT.key) == _PIVOT
    edited = await edit(here, _PIVOT, "By a person.")
    assert await there.pivots.load("t", _PIVOT.key) == edited
    assert [place.key for place in there.news.find("t", talk(4))] == [_PIVOT.key]


async def test_a_change_is_seen_also_where_memory_has_the_text_before() -> None:
    server = ToyServer()
    here, there = await connect(server), await connect(server)
    await here.pivots.save(_PIVOT)
    before = await there.pivots.load_again("t", _PIVOT.key)
    assert before == _PIVOT and not await there.edits.has_changed(before)
    await edit(here, _PIVOT, "By a person.")
    assert await there.edits.has_changed(before)
    assert there.pivots.find(_PIVOT.key) != before


async def test_a_summary_in_the_place_of_a_digest_is_no_edit() -> None:
    state = make_state(await make_store())
    await state.pivots.save(replace(_PIVOT, version=2))
    assert not await state.edits.has_changed(replace(_PIVOT, is_digest=True))


@pytest.mark.parametrize("is_shared", [False, True])
async def test_two_never_hold_one_name_at_once(is_shared: bool) -> None:
    server, store = ToyServer(), await make_store()
    one = await connect(server) if is_shared else make_state(store)
    other = await connect(server) if is_shared else one
    order: list[str] = []
    is_held = asyncio.Event()

    async def work(edits: SummaryEdits, name: str) -> None:
        async with edits.hold("t", ["aa", "bb"]):
            order.append(f"{name} begins")
            is_held.set()
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    first = asyncio.create_task(work(one.edits, "one"))
    await is_held.wait()
    await asyncio.gather(first, work(other.edits, "other"))
    assert order == ["one begins", "one ends", "other begins", "other ends"]


async def test_it_is_in_the_store_or_it_is_refused() -> None:
    store = await make_store()
    state = make_state(store)
    await state.pivots.save(_PIVOT)
    await store.close()
    with pytest.raises(StoreError):
        await edit(state, _PIVOT, "By a person.")
    assert state.pivots.find(_PIVOT.key) == _PIVOT
