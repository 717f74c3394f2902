import asyncio
from typing import Any

import pytest

from gateway.core.compaction.manual import Compacted
from gateway.state.chain_places import ChainPlace
from gateway.state.records import Marker
from tests.builders.state import make_head, make_state, make_store
from tests.state.talk import talk
from tests.toy.shared_store import ToyServer


def make_marker(key: str, **fields: Any) -> Marker:
    defaults: dict[str, Any] = {"length": 5, "auto": True, "reason": "overflow", "created_seconds": 1.0}
    return Marker(owner="t", key=key, **(defaults | fields))


@pytest.mark.system(2)
async def test_after_a_restart_a_marker_is_taken_once_and_gone_for_good() -> None:
    store = await make_store()
    before, after = make_state(store).tasks, make_state(store).tasks
    marker = make_marker("ab")
    before.save_marker(marker)
    # The next request of the process that saved it is not told of it: its work is under way.
    assert "ab" not in before.waiting and "ab" not in after.waiting
    await after.load_marker("t", "ab")
    assert "ab" in after.waiting
    assert await after.take("t", "ab") == marker
    assert await after.take("t", "ab") is None
    assert await store.scan("marker:") == []


async def test_a_marker_that_is_dropped_does_not_come_back() -> None:
    store = await make_store()
    before, after = make_state(store).tasks, make_state(store).tasks
    before.save_marker(make_marker("ab"))
    before.drop_marker("t", "ab")
    await after.load_marker("t", "ab")
    assert await after.take("t", "ab") is None


async def test_a_marker_of_another_owner_is_not_taken() -> None:
    store = await make_store()
    make_state(store).tasks.save_marker(make_marker("ab"))
    tasks = make_state(store).tasks
    await tasks.load_marker("u", "ab")
    assert "ab" not in tasks.waiting


async def test_a_marker_that_is_left_waits_for_the_next_request_here_or_after_a_restart() -> None:
    store = await make_store()
    here = make_state(store)
    head = make_head(talk(2))
    here.heads.hold(head)
    marker = make_marker(head.key, auto=False, reason="manual", instructions="Keep names.")
    here.tasks.leave_marker(marker)
    here.heads.flush()
    there = make_state(store)
    assert await there.heads.load("t", talk(3), "s") == head
    await there.tasks.load_marker("t", head.key)
    assert head.key in here.tasks.waiting and head.key in there.tasks.waiting
    assert await there.tasks.take("t", head.key) == marker
    assert await here.tasks.take("t", head.key) is None


async def test_a_command_that_was_carried_out_is_known_after_a_restart_and_to_its_tenant_alone() -> None:
    store = await make_store()
    await make_state(store).tasks.save_command("t", "ab", Compacted(3, 2_000, 900))
    again = make_state(store).tasks
    assert await again.load_command("t", "ab") == Compacted(3, 2_000, 900)
    assert await again.load_command("other", "ab") is None
    assert await again.load_command("t", "cd") is None


async def test_of_several_processes_one_takes_a_marker() -> None:
    store = await make_store()
    one, other = make_state(store).tasks, make_state(store).tasks
    one.save_marker(make_marker("ab"))
    assert await other.take("u", "ab") is None
    one.save_marker(make_marker("ab"))
    await other.load_marker("t", "ab")
    assert [await tasks.take("t", "ab") for tasks in (other, one)] == [make_marker("ab"), None]
    assert "ab" not in other.waiting


async def test_a_marker_waits_for_a_request_that_is_later_by_some_turns() -> None:
    """The newest first; one of another conversation stays."""
    tasks = make_state(await make_store()).tasks
    older, newer, foreign = (
        make_marker(talk(turns).key.hex(), length=len(talk(turns).messages)) for turns in (2, 3, 5)
    )
    for marker in (newer, older, foreign):
        tasks.save_marker(marker)
        await tasks.load_marker("t", marker.key)
    assert [tasks.pop_waiting(talk(4)) for _ in range(3)] == [newer, older, None]
    assert tasks.pop_waiting(talk(5)) == foreign


async def test_a_marker_that_is_left_is_announced_with_its_place() -> None:
    server = ToyServer()
    here, there = (make_state(server.connect()) for _ in range(2))
    head = make_head(talk(2))
    here.tasks.leave_marker(make_marker(head.key, length=head.length))
    await asyncio.sleep(0)
    assert there.news.find("t", talk(4)) == [ChainPlace(head.key, head.length)]
