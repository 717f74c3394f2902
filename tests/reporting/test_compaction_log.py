"""The compaction log of a conversation, as a value and on the admin port (document 002)."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.reporting.compaction_log import CompactionLog, Entry, parse_log, render_log
from tests.toy.admin_port import ADMIN, ask_to_compact, get_json
from tests.toy.agent import Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Run, run_session
from tests.toy.upstream import ToyUpstream

_KEYS = {
    *("when", "kind", "trigger", "reason", "outcome", "pre_tokens", "post_tokens", "messages"),
    *("summary_tokens", "model", "calls", "seconds"),
}


def make_entry(number: int = 0) -> Entry:
    return Entry(at_seconds=float(number), kind="summary", trigger="auto", reason="overflow", calls=1)


@given(st.integers(0, 250))
def test_it_keeps_the_newest_entries(count: int) -> None:
    log = CompactionLog(owner="t")
    for number in range(count):
        log = log.with_entry(make_entry(number))
    assert [entry.at_seconds for entry in log.entries] == list(range(max(0, count - 100), count))


def test_what_is_written_is_read_back() -> None:
    log = CompactionLog(owner="t").with_entry(make_entry()).with_entry(make_entry(1))
    assert parse_log(render_log(log)) == log


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"\xff", b'{"version":2,"owner":"t"}', b'{"owner":1}', b'{"owner":"t","x":1}']
)
def test_what_is_not_whole_is_none(damage: bytes) -> None:
    assert parse_log(damage) is None


@given(st.binary())
def test_no_bytes_make_it_raise(data: bytes) -> None:
    assert parse_log(data) is None


# On the admin port.


async def read_log(gateway: RunningGateway, run: Run) -> list[Any]:
    """Once nothing is under way; the oldest first."""
    await gateway.settle()
    log = await get_json(gateway, f"/conversations/{run.conversation}/log")
    return list(reversed(log["log"]))


async def test_each_compaction_is_logged_with_what_it_took_and_what_came_of_it() -> None:
    session = make_session(60, 3)
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        toy.summary_failures = [RawAnswer(status=500, pieces=(b'{"error": "SECRET"}',))] * 2
        run = await run_session(session, gateway.base_url, toy, Shape(max_tokens=1_000))
        entries = await read_log(gateway, run)
    failed, *others = entries
    assert (failed["outcome"], failed["kind"], failed["post_tokens"]) == ("status 500", "summary", None)
    assert (failed["calls"], failed["model"], failed["messages"] > 0) == (2, "toy-model", True)
    made = [entry for entry in others if entry["outcome"] == "done" and entry["kind"] == "summary"]
    assert len(made) >= 2
    for entry in made:
        assert entry.keys() == _KEYS and entry["trigger"] == "auto" and entry["model"] == "toy-model"
        assert entry["pre_tokens"] > entry["post_tokens"] > entry["summary_tokens"] > 0
    assert [entry["messages"] for entry in made] == sorted({entry["messages"] for entry in made})
    assert [entry["when"] for entry in entries] == sorted(entry["when"] for entry in entries)
    text = json.dumps(entries)
    assert "SECRET" not in text and not any(fact.token in text for fact in session.facts)


async def test_a_pruning_and_what_a_person_asked_for_are_logged_too() -> None:
    pruning = "{pruning: {eager: true, protect_tokens: 1500, minimum_tokens: 1000}}"
    more = f"{ADMIN}policies: {{default: {pruning}}}\n"
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        run = await run_session(make_session(12, 3), gateway.base_url, toy)
        await compact(gateway, run)
        entries = await read_log(gateway, run)
    *prunings, by_hand = entries
    assert prunings and {entry["kind"] for entry in prunings} == {"prune"}
    assert all(entry["pre_tokens"] > entry["post_tokens"] and entry["messages"] for entry in prunings)
    assert (by_hand["trigger"], by_hand["reason"], by_hand["outcome"]) == ("manual", "manual", "done")


async def test_without_anything_to_fold_that_is_what_it_says() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await run_session(make_session(1, 3), gateway.base_url, toy)
        assert await read_log(gateway, run) == []
        await compact(gateway, run)
        (entry,) = await read_log(gateway, run)
    assert (entry["outcome"], entry["trigger"], entry["pre_tokens"]) == ("nothing to fold", "manual", None)


async def test_a_restart_keeps_the_log_and_the_next_entry_goes_on_with_it(tmp_path: Path) -> None:
    session = make_session(60, 3)
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=ADMIN)
        async with running_gateway(settings) as gateway:
            run = await run_session(session, gateway.base_url, toy)
            before = await read_log(gateway, run)
        async with running_gateway(settings) as gateway:
            assert await read_log(gateway, run) == before
            await run_session(session, gateway.base_url, toy)
            await compact(gateway, run)
            after = await read_log(gateway, run)
    assert before and after[: len(before)] == before and len(after) > len(before)


async def compact(gateway: RunningGateway, run: Run) -> None:
    with gateway.bus.subscribe() as heard:
        assert (await ask_to_compact(gateway, run.conversation))[0] == 202
        await heard.next()
