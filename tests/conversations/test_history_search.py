"""When the store is asked about the history of a request, how often, and what comes of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.bounds.lanes import Lanes
from gateway.conversations import cleared_results, trimmed_histories
from gateway.conversations.history_search import HistorySearch, KnownHistory, Subject
from gateway.core.history.cleared_results import PLACEHOLDERS
from gateway.core.history.pivot import Mark, Pivot
from gateway.core.sizing.estimate import Meter
from gateway.state import State
from gateway.state.records import Marker
from tests.builders.chat import JSON, make_batch, make_pivot, make_turn, read, render
from tests.builders.state import make_head, make_state
from tests.builders.trimmed import say
from tests.toy.shared_store import SharedStore, ToyServer

SOURCE, METER = make_turn(read(render(say(0)))).source, Meter("toy", "m", "chars")


@dataclass(frozen=True)
class Process:
    store: SharedStore
    state: State
    search: HistorySearch

    async def find(self, messages: Sequence[JSON]) -> KnownHistory:
        subject = Subject(read(render(messages)), "s", SOURCE, METER, "m", "(gone)")
        return await self.search.find(subject)

    async def count(self, messages: Sequence[JSON]) -> int:
        """Round trips of one look."""
        before = self.store.reads
        await self.find(messages)
        return self.store.reads - before

    async def answer(self, messages: Sequence[JSON], pivot: Pivot | None = None, **fields: Any) -> None:
        """Records a response, as the compactor does near the thresholds."""
        known = await self.find(messages)
        head = make_head(known.received.conversation, pivot=pivot.key if pivot else None, **fields)
        self.state.heads.save(head)
        turn = make_turn(known.received)
        key = trimmed_histories.record(self.state, turn)
        if key is not None and pivot is not None:
            await self.state.histories.save(key, head)
        await asyncio.sleep(0.001)


async def open_processes(count: int) -> list[Process]:
    return await join(ToyServer(), count)


async def join(server: ToyServer, count: int) -> list[Process]:
    processes = []
    for _ in range(count):
        store = server.connect()
        await store.open()
        state = make_state(store)
        processes.append(Process(store, state, HistorySearch(state, Lanes())))
    return processes


def go_on(messages: Sequence[JSON], turns: int = 1) -> list[JSON]:
    """The same after so many more replies."""
    said = [
        {"role": role, "content": f"{role} {len(messages)} {turn}"}
        for turn in range(turns)
        for role in ("assistant", "user")
    ]
    return [*messages, *said]


def make_marker(key: str, length: int) -> Marker:
    return Marker(owner="t", key=key, length=length, auto=True, reason="overflow", created_seconds=1.0)


def call_results(text: str, count: int) -> list[JSON]:
    """A task, and so many calls with their results."""
    messages: list[JSON] = [{"role": "user", "content": "Look around."}]
    for number in range(count):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": text},
        ]
    return messages


def pivot_of(messages: Sequence[JSON], covers: int, **fields: Any) -> Pivot:
    return make_pivot(read(render(messages)).conversation, covers, **fields)


async def test_the_process_that_saw_every_turn_asks_nothing() -> None:
    (here,) = await open_processes(1)
    messages = say(0)
    for _ in range(5):
        assert await here.count(messages) == 0
        await here.answer(messages)
        messages = go_on(messages)


async def test_another_process_asks_once_and_once_more_for_what_the_head_names() -> None:
    here, there = await open_processes(2)
    pivot = pivot_of(say(6), 5)
    batch = make_batch(read(render(say(6))).conversation, [Mark(1)])
    await here.state.pivots.save(pivot)
    await here.state.pivots.save_batch_durably(batch)
    await here.answer(say(6), pivot, batches=(batch.key,))
    later = go_on(say(6))
    assert await there.count(later) == 2
    known = await there.find(later)
    assert known.head is not None and known.head.pivot == pivot.key and not known.lacks_replies
    assert there.state.pivots.find(pivot.key) == pivot
    assert await there.state.pivots.load_batches("t", [batch.key]) == [batch]
    # The news of this pivot is old by now.
    assert await there.count(later) == 0


async def test_a_pivot_that_no_head_names_yet_is_found_by_the_very_next_request() -> None:
    here, there = await open_processes(2)
    await here.answer(say(6))
    await there.answer(say(7))
    pivot = pivot_of(say(7), 5)
    await here.answer(say(8))
    await here.state.pivots.save(pivot)
    assert await there.count(say(9)) <= 2
    assert there.state.pivots.list_on_chain(read(render(say(9))).conversation) == [pivot]


@pytest.mark.parametrize("times", [1, 2])
async def test_a_process_that_saw_the_turn_before_looks_again_once_when_it_has_news(times: int) -> None:
    here, there = await open_processes(2)
    for each in (here, there):
        await each.answer(say(6))
    later = go_on(say(6))
    assert await there.count(later) == 0
    pivot = pivot_of(say(6), 5)
    await here.state.pivots.save(pivot)
    for _ in range(times):
        here.state.pivots.activate_manual(pivot, None)
        await here.state.pivots.save(pivot)
    await asyncio.sleep(0)
    assert await there.count(later) == 1
    assert there.state.pivots.find(pivot.key) == pivot
    assert await there.count(later) == 0


async def test_a_marker_that_was_left_elsewhere_waits_for_the_next_request_here() -> None:
    here, there = await open_processes(2)
    for each in (here, there):
        await each.answer(say(6))
    head = (await here.find(say(6))).head
    assert head is not None
    here.state.tasks.leave_marker(make_marker(head.key, head.length))
    await asyncio.sleep(0)
    assert await there.count(go_on(say(6))) == 1
    assert head.key in there.state.tasks.waiting
    assert await there.state.tasks.take("t", head.key) is not None
    assert await here.state.tasks.take("t", head.key) is None


async def test_in_a_new_generation_every_branch_looks_again_once() -> None:
    here, there = await open_processes(2)
    for each in (here, there):
        await each.answer(say(6))
    there.store.cut()
    pivot = pivot_of(say(6), 5)
    await here.state.pivots.save(pivot)
    await there.store.mend()
    assert await there.count(go_on(say(6))) == 1
    assert there.state.pivots.find(pivot.key) == pivot
    await there.answer(go_on(say(6)))
    assert await there.count(go_on(go_on(say(6)))) == 0


async def test_of_two_heads_the_later_one_of_the_branch_wins_as_a_whole() -> None:
    here, there = await open_processes(2)
    early, late = pivot_of(say(6), 3), pivot_of(say(7), 7)
    await here.state.pivots.save(early)
    await here.answer(say(6), early)
    await there.state.pivots.save(late)
    await there.answer(say(7), late)
    known = await here.find(say(8))
    assert known.head is not None
    assert (known.head.pivot, known.head.batches) == (late.key, ())


async def test_a_history_that_the_client_has_trimmed_is_found_elsewhere_in_two_trips() -> None:
    here, there = await open_processes(2)
    messages = say(10)
    pivot = pivot_of(messages, 5)
    batch = make_batch(read(render(messages)).conversation, [Mark(1)])
    await here.state.pivots.save(pivot)
    await here.state.pivots.save_batch_durably(batch)
    await here.answer(messages, pivot, batches=(batch.key,))
    sent = say(11)[-12:]
    (fresh,) = await join(there.store.server, 1)
    assert await fresh.count(sent) == 2
    known = await fresh.find(sent)
    assert known.received.conversation.trim is not None
    assert known.head is not None and known.head.pivot == pivot.key
    assert fresh.state.pivots.find(pivot.key) == pivot
    assert await fresh.state.pivots.load_batches("t", [batch.key]) == [batch]


async def test_results_that_the_client_has_cleared_are_found_elsewhere_in_two_trips() -> None:
    here, there = await open_processes(2)
    whole = call_results("found it", 6)
    received = read(render(whole))
    pivot = make_pivot(received.conversation, 7)
    await here.state.pivots.save(pivot)
    await cleared_results.record(here.state, make_turn(received), pivot)
    await here.answer(whole, pivot)
    cleared = call_results(PLACEHOLDERS[0], 6)
    before = there.store.reads
    known = await there.find(cleared)
    assert there.store.reads - before == 2
    assert known.head is not None
    found = there.state.pivots.find(known.head.pivot)
    assert found is not None and found.summary == pivot.summary


async def test_a_store_that_cannot_be_reached_leaves_what_memory_has() -> None:
    here, _ = await open_processes(2)
    await here.answer(say(6))
    here.store.cut()
    known = await here.find(say(9))
    assert known.head is not None and known.lacks_replies
