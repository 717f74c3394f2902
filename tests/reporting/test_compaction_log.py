import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.turn import Turn
from gateway.reporting.compaction_log import (
    CompactionLog,
    CompactionLogWriter,
    LogEntry,
    load_places,
    make_place_key,
    parse_log,
    render_log,
)
from gateway.store.keys import make_key, make_tag
from gateway.tenants import Tenant
from tests.builders.chat import make_turn, read, render
from tests.builders.state import make_store
from tests.toy.admin_port import ADMIN, ask_to_compact, get_json
from tests.toy.agent import Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Run, run_session
from tests.toy.shared_store import ToyServer
from tests.toy.upstream import ToyUpstream

_KEYS = {
    *("when", "kind", "trigger", "reason", "outcome", "pre_tokens", "post_tokens", "messages"),
    *("summary_tokens", "model", "calls", "seconds"),
}


def make_entry(number: int = 0) -> LogEntry:
    return LogEntry(at_seconds=float(number), kind="summary", trigger="auto", reason="overflow", calls=1)


def test_a_log_written_by_the_version_before_is_read() -> None:
    written = (
        b'{"version":1,"owner":"t","entries":[{"at_seconds":1.5,"kind":"summary","trigger":"auto",'
        b'"reason":"overflow","outcome":"done","pre_tokens":10,"post_tokens":5,"messages":3,"summary_tokens":2,'
        b'"model":"m","calls":1,"seconds":0.5}]}'
    )
    entry = LogEntry(
        at_seconds=1.5,
        kind="summary",
        trigger="auto",
        reason="overflow",
        pre_tokens=10,
        post_tokens=5,
        messages=3,
        summary_tokens=2,
        model="m",
        calls=1,
        seconds=0.5,
    )
    assert parse_log(written) == CompactionLog(owner="t", entries=(entry,))


def test_a_rendered_log_is_parsed_back() -> None:
    log = CompactionLog(owner="t", entries=(make_entry(), make_entry(1)))
    assert parse_log(render_log(log)) == log


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"\xff", b'{"version":2,"owner":"t"}', b'{"owner":1}', b'{"owner":"t","x":1}']
)
def test_a_damaged_log_is_none(damage: bytes) -> None:
    assert parse_log(damage) is None


@given(st.binary())
def test_parsing_never_raises(data: bytes) -> None:
    assert parse_log(data) is None


# The writer.

_BODY = render([{"role": "user", "content": "Fix it."}])


def turn_of(tenant: str, conversation_id: str = "c") -> Turn:
    return make_turn(
        read(_BODY, tenant), tenant=Tenant(tenant, None, "default"), conversation_id=conversation_id
    )


async def read_times(writer: CompactionLogWriter, conversation: str = "c") -> list[float]:
    log = await writer.load(make_tag("t"), conversation)
    return [entry.at_seconds for entry in log.entries] if log is not None else []


async def test_a_later_process_adds_to_the_log_that_it_finds() -> None:
    store = await make_store()
    before = CompactionLogWriter(store, keep_seconds=60)
    for number in range(3):
        before.note(turn_of("t"), make_entry(number))
    await before.finish()
    after = CompactionLogWriter(store, keep_seconds=60)
    after.note(turn_of("t"), make_entry(3))
    assert await read_times(after) == [0, 1, 2, 3]


async def test_processes_that_share_a_store_overwrite_no_entry_of_each_other() -> None:
    server = ToyServer()
    stores = [server.connect() for _ in range(3)]
    for store in stores:
        await store.open()
    writers = [CompactionLogWriter(store, keep_seconds=60) for store in stores]
    for number in range(10):
        for at, writer in enumerate(writers):
            # Two of them note at the same time.
            writer.note(turn_of("t"), make_entry(10 * number + at // 2))
    for writer in writers:
        await writer.finish()
    for store in stores:
        await store.close()
    reader = server.connect()
    await reader.open()
    expected = sorted(10 * number + at // 2 for number in range(10) for at in range(3))
    assert await read_times(CompactionLogWriter(reader, keep_seconds=60)) == expected


@pytest.mark.parametrize("count", [99, 100, 101, 250])
async def test_the_newest_hundred_entries_are_shown_and_not_many_more_kept(count: int) -> None:
    store = await make_store()
    writer = CompactionLogWriter(store, keep_seconds=60)
    for number in range(count):
        writer.note(turn_of("t"), make_entry(number))
    assert await read_times(writer) == list(range(max(0, count - 100), count))
    assert len(await store.scan(make_key(make_tag("t"), "report", "c:"))) < 120


async def test_entries_of_one_moment_keep_their_order() -> None:
    writer = CompactionLogWriter(await make_store(), keep_seconds=60)
    reasons = [f"reason {number}" for number in range(20)]
    for reason in reasons:
        writer.note(turn_of("t"), msgspec.structs.replace(make_entry(7), reason=reason))
    log = await writer.load(make_tag("t"), "c")
    assert log is not None and [entry.reason for entry in log.entries] == reasons


async def test_a_log_in_the_form_of_earlier_versions_comes_before_the_new_entries() -> None:
    store = await make_store()
    old = CompactionLog(owner="t", entries=(make_entry(1), make_entry(2)))
    store.write(make_key(make_tag("t"), "log", "c"), render_log(old), keep_seconds=60)
    writer = CompactionLogWriter(store, keep_seconds=60)
    assert await read_times(writer) == [1, 2]
    writer.note(turn_of("t"), make_entry(3))
    assert await read_times(writer) == [1, 2, 3]


async def test_an_entry_is_read_at_once_and_in_its_conversation_alone() -> None:
    writer = CompactionLogWriter(await make_store(), keep_seconds=60)
    writer.note(turn_of("t", "c"), make_entry(1))
    writer.note(turn_of("t", "cc"), make_entry(2))
    assert await read_times(writer, "c") == [1]
    assert await read_times(writer, "cc") == [2]
    assert await writer.load(make_tag("t"), "e") is None


async def test_a_damaged_entry_is_left_out() -> None:
    store = await make_store()
    store.write(make_key(make_tag("t"), "report", "c:0"), b'{"owner":', keep_seconds=60)
    writer = CompactionLogWriter(store, keep_seconds=60)
    assert await writer.load(make_tag("t"), "c") is None
    writer.note(turn_of("t"), make_entry(1))
    assert await read_times(writer) == [1]


async def test_the_entries_of_another_tenant_are_never_shown() -> None:
    store = await make_store()
    writer = CompactionLogWriter(store, keep_seconds=60)
    writer.note(turn_of("t"), make_entry(1))
    writer.note(turn_of("u"), make_entry(2))
    stray = CompactionLog(owner="u", entries=(make_entry(3),))
    store.write(make_key(make_tag("t"), "report", "c:f"), render_log(stray), keep_seconds=60)
    assert await read_times(writer) == [1]


async def test_the_tag_of_a_conversation_is_found_by_its_id_alone() -> None:
    writer = CompactionLogWriter(await make_store(), keep_seconds=60)
    writer.note(turn_of("t", "c"), make_entry(1))
    assert await writer.find_tag("c") == make_tag("t")
    assert await writer.find_tag("d") is None


async def test_what_points_to_the_logs_of_a_tenant_is_found() -> None:
    store = await make_store()
    writer = CompactionLogWriter(store, keep_seconds=60)
    for owner, conversation in (("t", "a"), ("t", "a"), ("t", "b"), ("u", "c")):
        writer.note(turn_of(owner, conversation), make_entry(1))
    await writer.finish()
    assert await load_places(store, make_tag("t")) == sorted([make_place_key("a"), make_place_key("b")])


# The log on the admin port.


async def read_log(gateway: RunningGateway, run: Run) -> list[Any]:
    """When nothing is under way any more. The oldest first."""
    await gateway.settle()
    log = await get_json(gateway, f"/conversations/{run.conversation}/log")
    return list(reversed(log["log"]))


@pytest.mark.system(10)
async def test_each_compaction_is_logged_with_its_cost_and_its_outcome() -> None:
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


@pytest.mark.system(10)
async def test_prunings_and_manual_compactions_are_logged_too() -> None:
    pruning = "{pruning: {eager: true, protect_tokens: 1500, minimum_tokens: 1000}}"
    more = f"{ADMIN}policies: {{default: {pruning}}}\n"
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        run = await run_session(make_session(12, 3), gateway.base_url, toy)
        await compact(gateway, run)
        entries = await read_log(gateway, run)
    *prunings, manual = entries
    assert prunings and {entry["kind"] for entry in prunings} == {"prune"}
    assert all(entry["pre_tokens"] > entry["post_tokens"] and entry["messages"] for entry in prunings)
    assert (manual["trigger"], manual["reason"], manual["outcome"]) == ("manual", "manual", "done")


async def test_a_manual_compaction_with_nothing_to_fold_is_logged() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await run_session(make_session(1, 3), gateway.base_url, toy)
        assert await read_log(gateway, run) == []
        await compact(gateway, run)
        (entry,) = await read_log(gateway, run)
    assert (entry["outcome"], entry["trigger"], entry["pre_tokens"]) == ("nothing to fold", "manual", None)


@pytest.mark.system(10)
async def test_after_a_restart_entries_are_added_to_the_same_log(store_url: str) -> None:
    session = make_session(60, 3)
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=store_url, more=ADMIN)
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
