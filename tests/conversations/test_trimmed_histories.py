"""A request is recognized after its client has dropped a part of the history, as a part of its own only."""

import json
from typing import Any

from msgspec.structs import replace

from gateway.conversations import trimmed_histories
from gateway.conversations.recognizer import Received
from gateway.conversations.trimmed_histories import make_source
from gateway.conversations.turn import Turn
from gateway.core.history.pivot import Pivot, find_eligible_pivots
from gateway.core.history.trimmed import HistorySource
from gateway.core.sizing.usage import Usage
from gateway.state import State
from gateway.state.trip import Trip
from tests.builders.chat import JSON, make_pivot, make_plan, make_turn, read, render
from tests.builders.pipeline import Pipeline, running_pipeline
from tests.builders.state import make_head, make_state, make_store
from tests.builders.trimmed import say


async def build(pipeline: Pipeline, messages: list[JSON], **fields: Any) -> Turn:
    """Of a client that names its session: a short run of messages is a proof."""
    body = json.dumps({"model": "toy", "messages": messages} | fields).encode()
    return await pipeline.build(body, more=[("x-gateway-session", "s")])


async def answer(pipeline: Pipeline, messages: list[JSON], pivot: Pivot | None = None, **fields: Any) -> Turn:
    """A turn whose response is recorded."""
    turn = await build(pipeline, messages, **fields)
    if pivot is not None:
        await pipeline.state.pivots.save(pivot)
    pipeline.compactor.record_response(turn, make_plan(pivot), Usage(50, 5))
    return turn


async def test_a_conversation_keeps_its_id_as_its_window_moves_on() -> None:
    async with running_pipeline() as pipeline:
        first = await answer(pipeline, say(8))
        for turns in range(9, 20):
            turn = await answer(pipeline, say(turns)[-20:])
            assert turn.conversation_id == first.conversation_id
            assert len(turn.received.conversation.messages) == len(say(turns))
            assert turn.head is not None and turn.head.length == len(say(turns - 1))


async def test_its_pivot_stays_in_use_until_it_ends_before_what_is_sent() -> None:
    async with running_pipeline() as pipeline:
        turn = await build(pipeline, say(8))
        pivot = make_pivot(turn.received.conversation, 25, opening="Task t")
        await answer(pipeline, say(8), pivot)
        used = []
        for turns in range(9, 14):
            turn = await build(pipeline, say(turns)[-20:])
            active = find_eligible_pivots(turn.received.conversation, [pivot])
            pipeline.compactor.record_response(turn, make_plan(active[0] if active else None), Usage(50, 5))
            used.append(bool(active))
        assert used == [True, True, True, False, False]


async def test_another_conversation_with_the_same_messages_before_it_gets_no_pivot_of_it() -> None:
    """Both share a task and boilerplate; then each goes its own way, and their clients drop what is old."""
    shared = say(10, "same")
    first, second = [*shared, *say(6, "a")[1:]], [*shared, *say(6, "b")[1:]]
    async with running_pipeline() as pipeline:
        turn = await build(pipeline, first)
        pivot = make_pivot(turn.received.conversation, len(shared) + 4, opening="Task same")
        await answer(pipeline, first, pivot)
        for keeps in (len(second), 40, 24, 12):
            other = await build(pipeline, [*second[-keeps:], *say(1, "c")[1:]])
            assert other.head is None
            assert find_eligible_pivots(other.received.conversation, [pivot]) == []


async def test_a_request_that_is_not_kept_any_more_is_not_taken_for_an_older_one_of_another() -> None:
    """Both share what was said at first, and the other one has stopped there."""
    shared = say(8, "same")
    first, second = [*say(3, "a"), *shared[1:]], [*say(4, "b"), *shared[1:]]
    sent = [*shared[1:], *say(3, "c")[1:]]
    async with running_pipeline() as pipeline:
        await answer(pipeline, first)
        assert (await build(pipeline, sent)).head is not None
        last = await answer(pipeline, [*second, *say(2, "c")[1:]])
        key = trimmed_histories.record(pipeline.state, last)
        assert key is not None
        pipeline.compactor.record_response(
            replace(await build(pipeline, say(9, "d")), conversation_id=last.conversation_id),
            make_plan(None),
            Usage(50, 5),
        )
        assert pipeline.state.histories.find(key) is None
        assert (await build(pipeline, sent)).head is None


async def resume(state: State, sent: Received, source: HistorySource | None) -> Received | None:
    """From the store."""
    trip = Trip(state.store)
    keys = trimmed_histories.list_end_keys(state, sent, source)
    end = state.histories.ask(trip, sent.owner, keys)
    await trip.run()
    return trimmed_histories.resume(state, sent, source, end.record) if end.record is not None else None


async def test_what_was_recorded_before_a_restart_is_loaded() -> None:
    store = await make_store()
    turn = make_turn(read(render(say(8))))
    sent = read(render(say(9)[-20:]))
    source = turn.source
    before = make_state(store)
    key = trimmed_histories.record(before, turn)
    assert key is not None
    assert await resume(make_state(store), sent, source) is None
    await before.histories.save(key, make_head(turn.received.conversation))
    later = make_state(store)
    assert trimmed_histories.find(later, sent, source) is None
    found = await resume(later, sent, source)
    assert found is not None
    assert found.conversation.key == read(render(say(9))).conversation.key
    assert await resume(later, read(render(say(9)[-20:]), "other"), source) is None
    assert await resume(later, sent, HistorySource(b"another", is_named=True)) is None


def test_requests_share_a_source_if_nothing_that_it_is_made_of_differs() -> None:
    usual = ("toy", "session", "model", b"tools")
    others = [
        ("other", "session", "model", b"tools"),
        ("toy", None, "model", b"tools"),
        ("toy", "session", "other", b"tools"),
        ("toy", "session", "model", b"other"),
        ("toysession", None, "model", b"tools"),
        ("toy", "session\udcff", "model", b"tools"),
    ]
    assert make_source(*usual) == make_source(*usual)
    assert len({make_source(*each) for each in (usual, *others)}) == 7
