import asyncio
from typing import Any

import pytest

from gateway.core.compaction.manual import Compacted
from gateway.state.chain_places import ChainPlace
from gateway.state.records import Marker
from tests.builders.state import look_for_marker, make_head, make_state, make_store
from tests.state.talk import talk
from tests.toy.shared_store import ToyServer

_TALK = talk(2)
_KEY = _TALK.key.hex()


def make_marker(key: str, **fields: Any) -> Marker:
    defaults: dict[str, Any] = {"length": 5, "auto": True, "reason": "overflow", "created_seconds": 1.0}
    return Marker(owner="t", key=key, **(defaults | fields))


@pytest.mark.system(2)
async def test_after_a_restart_a_marker_is_taken_once_and_gone_for_good() -> None:
    store = await make_store()
    before, there = make_state(store).tasks, make_state(store)
    after, marker = there.tasks, make_marker(_KEY)
    before.save_marker(marker)
    # The next request of the process that saved it is not told of it: its work is under way.
    assert _KEY not in before.waiting and _KEY not in after.waiting
    await look_for_marker(there, _TALK)
    assert _KEY in after.waiting
    assert await after.take("t", _KEY) == marker
    assert await after.take("t", _KEY) is None
    assert await store.scan("marker:") == []


async def test_a_marker_that_is_dropped_does_not_come_back() -> None:
    store = await make_store()
    before, after = make_state(store).tasks, make_state(store)
    before.save_marker(make_marker(_KEY))
    before.drop_marker("t", _KEY)
    await look_for_marker(after, _TALK)
    assert _KEY not in after.tasks.waiting
    assert await after.tasks.take("t", _KEY) is None


async def test_a_marker_of_another_owner_is_not_taken() -> None:
    store = await make_store()
    make_state(store).tasks.save_marker(make_marker(_KEY))
    state = make_state(store)
    await look_for_marker(state, _TALK, owner="u")
    assert _KEY not in state.tasks.waiting


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
    await look_for_marker(there, _TALK)
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
    one, there = make_state(store).tasks, make_state(store)
    other = there.tasks
    one.save_marker(make_marker(_KEY))
    assert await other.take("u", _KEY) is None
    one.save_marker(make_marker(_KEY))
    await look_for_marker(there, _TALK)
    assert [await tasks.take("t", _KEY) for tasks in (other, one)] == [make_marker(_KEY), None]
    assert _KEY not in other.waiting


async def test_a_marker_waits_for_a_request_that_is_later_by_some_turns() -> None:
    """The newest first; one of another conversation stays."""
    state = make_state(await make_store())
    tasks, talks = state.tasks, [talk(turns) for turns in (2, 3, 5)]
    older, newer, foreign = (make_marker(each.key.hex(), length=len(each.messages)) for each in talks)
    for marker, each in ((newer, talks[1]), (older, talks[0]), (foreign, talks[2])):
        tasks.save_marker(marker)
        await look_for_marker(state, each)
    assert [tasks.pop_waiting(talk(4)) for _ in range(3)] == [newer, older, None]
    assert tasks.pop_waiting(talk(5)) == foreign


async def test_a_marker_that_is_left_is_announced_with_its_place() -> None:
    server = ToyServer()
    here, there = (make_state(server.connect()) for _ in range(2))
    head = make_head(talk(2))
    here.tasks.leave_marker(make_marker(head.key, length=head.length))
    await asyncio.sleep(0)
    assert there.news.find("t", talk(4)) == [ChainPlace(head.key, head.length)]
