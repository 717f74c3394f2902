"""What is known of a branch: heads, markers, ends of histories, recalls, names and learned numbers."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gateway.core.history.conversation import Conversation
from gateway.core.history.ends import HistoryEnd, HistorySource, find_end_key
from gateway.core.limits.model_limits import Learned, Limits
from gateway.core.sizing.estimate import Calibration, Meter
from gateway.state import State
from gateway.state.kinds import Marker
from gateway.store.interface import Key
from gateway.store.keys import make_tag
from tests.builders.state import connect, load_head, look_for_marker, make_state, make_store
from tests.builders.trimmed import say
from tests.decisions.builders import converse, make_head, make_recall
from tests.store.talk import talk
from tests.toy.shared_store import ToyServer


async def test_the_nearest_head_is_found_by_walking_back_from_the_end() -> None:
    heads = make_state(await make_store()).heads
    early, late = make_head(talk(1)), make_head(talk(3))
    heads.save(early)
    heads.save(late)
    assert heads.find(talk(5), "s") == late
    assert heads.find(talk(3), "s") == late
    assert heads.find(talk(2), "s") == early
    assert heads.find(talk(0), "s") is None


async def test_of_several_heads_at_one_place_the_one_of_the_same_scope_is_found() -> None:
    heads = make_state(await make_store()).heads
    main, side = make_head(talk(1), "main"), make_head(talk(1), "side", conversation="d")
    heads.save(main)
    heads.save(side)
    assert heads.find(talk(2), "main") == main
    assert heads.find(talk(2), "side") == side
    assert heads.find(talk(2), "other") == side


async def test_a_durable_head_is_in_the_store_at_once_and_names_what_no_death_can_lose() -> None:
    store = await make_store()
    heads = make_state(store).heads
    head = make_head(talk(3), pivot="aa", batches=("bb",))
    assert not heads.is_durable(head)
    await heads.save_durably(head)
    assert heads.is_durable(head)
    assert heads.find(talk(3), "s") is None
    heads.hold(head)
    assert heads.find(talk(3), "s") == head
    others: list[dict[str, Any]] = [{"recalls": ("cc",)}, {"batches": ()}, {"conversation": "d"}]
    for other in others:
        assert not heads.is_durable(replace(head, **other))
    # Another process finds it, and knows that it is durable.
    after = make_state(store)
    assert await load_head(after, talk(5)) == head
    assert after.heads.is_durable(head)


async def test_a_step_lives_an_hour_and_takes_nobodys_place() -> None:
    now = [0.0]
    server = ToyServer(lambda: now[0])
    store = server.connect()
    await store.open()
    heads = make_state(store, keep_seconds=86_400.0).heads
    lasting = make_head(talk(2), pivot="aa")
    await heads.save_durably(lasting)
    heads.hold_step(lasting)
    heads.hold_step(make_head(talk(3), pivot="aa"))
    await asyncio.sleep(0.001)
    now[0] = 4_000.0
    _, later = await connect(server)
    assert await load_head(later, talk(5)) == lasting


async def test_in_a_new_generation_nothing_is_known_to_be_stored_and_everything_to_be_looked_at() -> None:
    store, state = await connect(ToyServer())
    heads, head = state.heads, make_head(talk(3), pivot="aa")
    heads.save(head)
    await heads.save_durably(head)
    assert heads.is_current(head) and heads.is_durable(head)
    assert not heads.is_worth_saving(head)
    await store.mend()
    assert not heads.is_current(head) and not heads.is_durable(head)
    assert heads.is_worth_saving(head)
    heads.hold(make_head(talk(4)))
    assert heads.is_current(make_head(talk(4)))


# Markers


_TALK = talk(2)
_KEY = _TALK.key.hex()


def make_marker(key: str, **fields: Any) -> Marker:
    defaults: dict[str, Any] = {"length": 5, "auto": True, "reason": "overflow", "created_seconds": 1.0}
    return Marker(owner="t", key=key, **(defaults | fields))


async def test_of_several_processes_one_takes_a_marker() -> None:
    store = await make_store()
    one, there = make_state(store).tasks, make_state(store)
    other = there.tasks
    one.save_marker(make_marker(_KEY))
    assert await other.take("u", _KEY) is None
    one.save_marker(make_marker(_KEY))
    await look_for_marker(there, _TALK)
    assert [await tasks.take("t", _KEY) for tasks in (other, one)] == [make_marker(_KEY), None]
    assert other.pop_waiting("t", _TALK) is None


async def test_a_marker_waits_for_a_request_that_is_later_by_some_turns() -> None:
    """The newest first; one of another conversation stays."""
    state = make_state(await make_store())
    tasks, talks = state.tasks, [talk(turns) for turns in (2, 3, 5)]
    older, newer, foreign = (make_marker(each.key.hex(), length=len(each.messages)) for each in talks)
    for marker, each in ((newer, talks[1]), (older, talks[0]), (foreign, talks[2])):
        tasks.save_marker(marker)
        await look_for_marker(state, each)
    assert [tasks.pop_waiting("t", talk(4)) for _ in range(3)] == [newer, older, None]
    assert tasks.pop_waiting("t", talk(5)) == foreign


# Ends of histories


_SCOPE = HistorySource(b"scope", is_named=True)


def key_of(conversation: Conversation) -> str:
    key = find_end_key(_SCOPE, conversation)
    assert key is not None
    return key


def record(state: State, branch: str, conversation: Conversation) -> None:
    state.histories.record(make_head(conversation, conversation=branch), key_of(conversation), conversation)


async def test_two_histories_with_one_key_cannot_be_told_apart_also_after_one_went_on() -> None:
    state = make_state(await make_store())
    first = converse(say(5))
    other = converse([{"role": "user", "content": "Another task"}, *say(5)[1:]])
    assert key_of(first) == key_of(other)
    record(state, "one", first)
    record(state, "same", first)
    assert state.histories.find("t", key_of(first)) is not None
    record(state, "other", other)
    assert state.histories.find("t", key_of(first)) is None
    record(state, "other", converse([{"role": "user", "content": "Another task"}, *say(6)[1:]]))
    record(state, "one", first)
    assert state.histories.find("t", key_of(first)) is None and state.histories.has_seen(key_of(first))


async def test_a_history_that_comes_later_to_where_another_was_is_not_taken_for_it() -> None:
    """The first one may come back there, in memory and from the store."""
    store = await make_store()
    state, first = make_state(store), converse(say(5))
    other = converse([{"role": "user", "content": "Another task"}, *say(5)[1:]])
    key = key_of(first)
    record(state, "one", first)
    await state.histories.save(key, make_head(first, conversation="one"))
    record(state, "one", converse(say(6)))
    (stored,) = await load_end(state, key)
    assert not state.histories.is_contradicted(stored)
    record(state, "other", other)
    assert state.histories.find("t", key) is None and state.histories.is_contradicted(stored)
    # Nor may another process take the one for the other.
    (told,) = await load_end(make_state(store), key)
    assert told.is_crowded


async def load_end(state: State, key: str) -> list[HistoryEnd]:
    found: list[HistoryEnd] = []
    trip = state.begin_trip("t")
    state.histories.ask(trip, [key], found.append)
    await trip.run()
    return found


# Names


async def test_a_name_belongs_to_the_tenant_and_the_upstream_that_gave_it() -> None:
    names = make_state(await make_store()).owned_names
    names.record("key:a", "one", ["resp_1", "msg_1"])
    assert await names.owns("key:a", "one", "resp_1") and await names.owns("key:a", "one", "msg_1")
    assert not await names.owns("key:b", "one", "resp_1")
    assert not await names.owns("key:a", "two", "resp_1")
    assert not await names.owns("key:a", "one", "resp_2")


# Learned numbers


_METER = Meter("up", "model", "tiktoken")
_LEARNED = Learned(owner="t", proven=Limits(context=8_000), created_seconds=1.0)


async def test_calibrations_are_kept_for_each_tenant_upstream_model_and_estimator() -> None:
    store = await make_store()
    known = Calibration(2.5, 3, (2.5, 2.4, 2.6))
    make_state(store).calibrations.save("t", _METER, known)
    after = make_state(store).calibrations
    assert after.find("t", _METER) == Calibration()
    assert await after.load("t", _METER) == known
    assert after.find("t", _METER) == known
    others = [
        ("u", _METER),
        ("t", Meter("upm", "odel", "tiktoken")),
        ("t", Meter("up", "other", "tiktoken")),
        ("t", Meter("up", "model", "chars")),
    ]
    for owner, other in others:
        assert await after.load(owner, other) == Calibration()
        assert after.find(owner, other) == Calibration()


async def test_what_refusals_taught_survives_a_restart_and_belongs_to_its_tenant() -> None:
    store = await make_store()
    make_state(store).calibrations.save_learned("up", "model", _LEARNED)
    after = make_state(store).calibrations
    assert after.find_learned("t", "up", "model") == Learned(owner="t")
    assert await after.load_learned("t", "up", "model") == _LEARNED
    assert after.find_learned("t", "up", "model") == _LEARNED
    for owner, upstream, model in [("u", "up", "model"), ("t", "upm", "odel"), ("t", "up", "m")]:
        assert await after.load_learned(owner, upstream, model) == Learned(owner=owner)


async def test_what_is_learned_here_while_the_store_is_asked_is_not_overwritten() -> None:
    _, state = await connect(ToyServer())
    loading = asyncio.create_task(state.calibrations.load_learned("t", "up", "m"))
    await asyncio.sleep(0)
    known = Learned(owner="t").with_proof(Limits(context=9_000), 5.0)
    state.calibrations.save_learned("up", "m", known)
    assert await loading == known


@pytest.mark.parametrize(("kind", "is_read"), [("found", True), ("tool", False)])
async def test_a_recall_of_an_earlier_version_is_read_or_absent(kind: str, is_read: bool) -> None:
    """The model searched by itself then, and such a record says where its calls stood."""
    store, conversation = await make_store(), talk(3)
    recall = make_recall(conversation, 2, position=1)
    shown = {"calls": ["call_1"], "text": ""} if kind == "tool" else None
    rounds = [{"call": recall.text, "results": "", "shown": 0, "said": 0, "is_parallel": False}]
    written = msgspec.to_builtins(recall) | {"kind": kind, "rounds": rounds, "reply": shown}
    key = Key(make_tag("t"), "recall", recall.key)
    store.put(key, msgspec.msgpack.encode(written), 60)
    assert await make_state(store).pivots.load_recalls("t", [recall.key]) == [recall] * is_read
