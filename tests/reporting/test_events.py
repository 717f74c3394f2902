import asyncio
import json
import uuid
from typing import Any

import pytest

from gateway.reporting.events import (
    Bus,
    Event,
    Lost,
    Pruned,
    Relayed,
    event_name,
    make_boundary,
    render_event,
)
from gateway.tenants import Tenant
from tests.toy.agent import Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Run, run_session
from tests.toy.upstream import ToyUpstream


def _pruned(number: int) -> Pruned:
    return Pruned(session_id="c", tenant="t", marks=number, saved_tokens=0)


@pytest.mark.system(14)
def test_a_boundary_has_exactly_the_documented_fields() -> None:
    event = json.loads(render_event(make_boundary("c1", "manual", 14_001)))
    assert uuid.UUID(event.pop("uuid")).version == 4
    assert event == {
        "type": "system",
        "subtype": "compact_boundary",
        "compact_metadata": {"trigger": "manual", "pre_tokens": 14_001},
        "session_id": "c1",
    }


@pytest.mark.parametrize(
    ("tenant", "shown"), [("tenant:team-a", "team-a"), ("key:0123456789abcdef0123", "key:0123456789ab")]
)
def test_a_tenant_without_a_name_is_shown_by_the_beginning_of_its_hash(tenant: str, shown: str) -> None:
    assert Tenant(tenant, None, "default").display_name == shown


async def test_a_slow_subscriber_loses_the_oldest_events_and_delays_no_other() -> None:
    bus = Bus(max_waiting=3)
    with bus.subscribe() as slow, bus.subscribe() as quick:
        for number in range(5):
            bus.publish(_pruned(number))
            assert await quick.next() == _pruned(number)
        assert [await slow.next() for _ in range(4)] == [Lost(count=2), *map(_pruned, (2, 3, 4))]
        bus.publish(_pruned(5))
        assert await slow.next() == _pruned(5)
    assert bus.subscribers == 0
    bus.publish(_pruned(6))


async def test_a_waiting_subscriber_gets_the_next_event() -> None:
    bus = Bus()
    with bus.subscribe() as subscription:
        waiting = asyncio.create_task(subscription.next())
        await asyncio.sleep(0)
        bus.publish(_pruned(1))
        assert await waiting == _pruned(1)


async def _listen(bus: Bus, heard: list[Event]) -> None:
    with bus.subscribe() as subscription:
        while True:
            heard.append(await subscription.next())


async def _play(
    toy: ToyUpstream, turns: int, more: str = "", *, is_known: bool = True
) -> tuple[Run, list[Event]]:
    """is_known: is the window configured?"""
    heard: list[Event] = []
    async with toy:
        settings = make_settings(toy, more=more)
        if not is_known:
            settings = settings.replace("toy-*", "other-*")
        async with running_gateway(settings) as gateway:
            listening = asyncio.create_task(_listen(_bus(gateway), heard))
            await asyncio.sleep(0)
            run = await run_session(make_session(turns, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
            listening.cancel()
    return run, heard


def _bus(gateway: RunningGateway) -> Bus:
    bus: Bus = gateway.bus
    return bus


def _read(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(render_event(event))
    return fields


@pytest.mark.system(8)
async def test_each_compaction_is_published_as_a_boundary_and_with_every_detail() -> None:
    toy = ToyUpstream(window=16_000)
    run, heard = await _play(toy, 30)
    names = [event_name(event) for event in heard]
    assert run.failed == [] and names.count("compact_boundary") == names.count("session.compacted") > 0
    conversation = run.answers[-1].header("x-gateway-conversation")
    boundary = _read(heard[names.index("compact_boundary")])
    assert boundary["session_id"] == conversation and boundary["compact_metadata"]["trigger"] == "auto"
    told = _read(heard[names.index("session.compacted")])
    assert told["sessionID"] == conversation and told["kind"] == "summary"
    # Counted by upstream: it was prepared after a response, between the soft threshold and the window.
    assert told["pre_tokens"] == boundary["compact_metadata"]["pre_tokens"]
    assert 8_000 <= told["pre_tokens"] <= 16_000
    assert 0 < told["post_tokens"] < told["pre_tokens"]


async def test_refusals_failures_and_digests_are_published_without_text_of_the_conversation() -> None:
    toy = ToyUpstream(window=16_000)
    toy.summary_failures = [RawAnswer(status=500, pieces=(b"{}",))] * 2
    run, heard = await _play(toy, 60, is_known=False)
    by_name = {event_name(event): _read(event) for event in reversed(heard)}
    assert run.failed == []
    overflow, failed = by_name["overflow"], by_name["compaction_failed"]
    assert (overflow["kind"], overflow["retried"], overflow["context"]) == ("tokens", True, 16_000)
    assert (failed["kind"], failed["reason"], failed["trigger"]) == ("summary", "status 500", "auto")
    kinds = {_read(event)["kind"] for event in heard if event_name(event) == "session.compacted"}
    assert kinds == {"summary", "digest"}
    # The texts of the session are made of words. An event holds ids, names and numbers only.
    texts = {value for event in heard for value in _read(event).values() if isinstance(value, str)}
    assert all(len(text) <= 40 and text.count(" ") <= 1 for text in texts)
    assert not any(fact.token in str(texts) for fact in make_session(60, 3).facts)
    assert {event["tenant"] for event in map(_read, heard) if "tenant" in event} == {overflow["tenant"]}
    assert overflow["tenant"].startswith("key:") and len(overflow["tenant"]) == len("key:") + 12


async def test_a_pruning_is_published_once() -> None:
    toy = ToyUpstream(window=64_000)
    more = "policies:\n  default:\n    pruning: {protect_tokens: 2000, minimum_tokens: 2000, eager: true}\n"
    run, heard = await _play(toy, 16, more)
    plans = [answer.header("x-gateway-plan") for answer in run.answers]
    prunings = [_read(event) for event in heard if event_name(event) == "pruned"]
    assert 0 < len(prunings) < plans.count("pruned")
    assert all(event["marks"] > 0 and event["saved_tokens"] > 0 for event in prunings)


async def test_large_events_wait_in_bounded_memory() -> None:
    bus = Bus()
    large = Relayed(name="activity", data=b"x" * (1 << 20))
    with bus.subscribe() as slow:
        for number in range(20):
            bus.publish(large)
            bus.publish(_pruned(number))
        assert await slow.next() == Lost(count=31)
        assert sum(isinstance(event, Relayed) for event in slow.take()) == 4
        for _ in range(3):
            bus.publish(large)
        assert slow.take() == [large] * 3
        # One that is larger than all may be is still told.
        bus.publish(Relayed(name="farewell", data=b"x" * (5 << 20)))
        assert isinstance(await slow.next(), Relayed)
