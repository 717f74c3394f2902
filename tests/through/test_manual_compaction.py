"""A compaction asked for through the admin port runs at once, or at the conversation's next request."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.toy.admin_calls import ask_to_compact, listening
from tests.toy.agent import Session, make_session
from tests.toy.delivery import Delivery
from tests.toy.house import ADMIN, make_settings
from tests.toy.product import Product, serve
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

_RESUME = "Continue if you have next steps"
_SEPARATOR = "(end of the summary)"


async def play(gateway: Product, toy: ToyUpstream, session: Session, first: int, last: int) -> Run:
    run = await run_session(session, gateway.base_url, toy, pace=Pace(first=first, last=last))
    assert run.failed == [] and run.refusals == []
    return run


def texts_of(run: Run) -> list[Any]:
    messages: Any = run.outgoing[-1].request["messages"]
    return [message.get("content") for message in messages]


@pytest.mark.system(15)
async def test_a_compaction_between_two_requests_applies_from_the_next_one_on() -> None:
    session = make_session(14, 3)
    async with ToyUpstream() as toy, serve(make_settings(toy, more=ADMIN)) as gateway:
        before = await play(gateway, toy, session, 0, 12)
        async with listening(gateway) as heard:
            told = await ask_to_compact(
                gateway, before.conversation, b'{"instructions": "Keep ticket numbers."}'
            )
            assert told == (202, {"id": before.conversation, "begins": "now"})
            await gateway.at_rest()
            boundary = await heard.next("compact_boundary")
            compacted = await heard.next("session.compacted")
        after = await play(gateway, toy, session, 12, 14)
    (summary,) = toy.summaries
    assert b"Keep ticket numbers." in summary.body
    assert after.plans == ["pivot", "pivot"]
    assert after.conversation == before.conversation
    assert after.outgoing[0].prompt_tokens < before.outgoing[-1].prompt_tokens
    # The model was not interrupted, so there is no resume text; a separator makes the roles alternate.
    texts = texts_of(after)
    assert _RESUME not in texts and texts.count(_SEPARATOR) == 1
    assert boundary["compact_metadata"]["trigger"] == "manual"
    assert boundary["session_id"] == before.conversation == compacted["sessionID"]
    assert 0 < compacted["post_tokens"] < compacted["pre_tokens"]
    # The size after the last response, as the upstream counts it.
    last = before.outgoing[-1].prompt_tokens
    assert last * 0.9 < compacted["pre_tokens"] < last * 1.2


@pytest.mark.system(15)
@pytest.mark.parametrize("more", ["", "policies: {default: {compaction: {auto: false}}}\n"])
async def test_a_manual_compaction_needs_neither_a_known_window_nor_automatic_compaction(more: str) -> None:
    session = make_session(14, 3)
    async with ToyUpstream() as toy:
        settings = make_settings(toy, more=ADMIN + more).replace("toy-*", "toy-*" if more else "other-*")
        async with serve(settings) as gateway:
            before = await play(gateway, toy, session, 0, 12)
            assert (await ask_to_compact(gateway, before.conversation))[0] == 202
            await gateway.at_rest()
            after = await play(gateway, toy, session, 12, 14)
    assert after.plans == ["pivot", "pivot"]
    assert len(toy.summaries) == 1


async def test_a_second_compaction_builds_on_the_first_summary() -> None:
    session = make_session(26, 3)
    async with ToyUpstream() as toy, serve(make_settings(toy, more=ADMIN)) as gateway:
        for first, last in ((0, 12), (12, 24)):
            run = await play(gateway, toy, session, first, last)
            await ask_to_compact(gateway, run.conversation)
            await gateway.at_rest()
        after = await play(gateway, toy, session, 24, 26)
    _, second = toy.summaries
    # System prompt, task, and the first summary. The second summary call contains that summary.
    framed = texts_of(run)[2]
    framing, _, earlier = framed.partition("\n\n")
    asked: Any = second.request["messages"]
    assert earlier and earlier in asked[-1]["content"] and framing not in asked[-1]["content"]
    assert framed not in texts_of(after) and texts_of(after).count(_SEPARATOR) == 1


async def test_a_conversation_whose_body_is_no_longer_in_memory_is_compacted_at_its_next_request() -> None:
    session, other = make_session(16, 3), make_session(2, 4)
    more = ADMIN + "cache: {bodies: 1}\n"
    async with ToyUpstream() as toy, serve(make_settings(toy, more=more)) as gateway:
        before = await play(gateway, toy, session, 0, 12)
        await play(gateway, toy, other, 0, 1)
        status, told = await ask_to_compact(gateway, before.conversation, b'{"instructions": "Keep names."}')
        assert (status, told["begins"]) == (202, "at the next request")
        assert toy.summaries == []
        await play(gateway, toy, session, 12, 13)
        await gateway.at_rest()
        after = await play(gateway, toy, session, 13, 16)
    (summary,) = toy.summaries
    assert b"Keep names." in summary.body
    assert set(after.plans) == {"pivot"}
    assert _RESUME not in texts_of(after)


@pytest.mark.system(15)
async def test_a_scheduled_compaction_survives_a_restart(store_url: str) -> None:
    session, other = make_session(16, 3), make_session(2, 4)
    async with ToyUpstream() as toy:
        settings = make_settings(toy, store=store_url, more=ADMIN + "cache: {bodies: 1}\n")
        async with serve(settings) as gateway:
            before = await play(gateway, toy, session, 0, 12)
            await play(gateway, toy, other, 0, 1)
            await ask_to_compact(gateway, before.conversation)
        async with serve(settings) as gateway:
            await play(gateway, toy, session, 12, 13)
            await gateway.at_rest()
        async with serve(settings) as gateway:
            after = await play(gateway, toy, session, 13, 14)
    assert len(toy.summaries) == 1
    assert after.plans == ["pivot"]


async def test_a_command_that_a_late_store_does_not_give_out_waits_for_the_request_after_it(
    tmp_path: Path,
) -> None:
    session, other = make_session(16, 3), make_session(2, 4)
    more, folder = ADMIN + "cache: {bodies: 1}\n", tmp_path / "state"
    async with ToyUpstream() as toy, serve(make_settings(toy, store=f"disk:{folder}", more=more)) as gateway:
        before = await play(gateway, toy, session, 0, 12)
        await play(gateway, toy, other, 0, 1)
        assert (await ask_to_compact(gateway, before.conversation))[1]["begins"] == "at the next request"
        await gateway.at_rest()
        with closing(sqlite3.connect(folder / "state.db", isolation_level=None)) as locking:
            locking.execute("BEGIN IMMEDIATE")
            await play(gateway, toy, session, 12, 13)
            # Longer than it waits for the lease and for the command.
            await asyncio.sleep(5)
            locking.execute("ROLLBACK")
        await gateway.at_rest()
        await play(gateway, toy, session, 13, 14)
        await gateway.at_rest()
        after = await play(gateway, toy, session, 14, 16)
    assert len(toy.summaries) == 1 and set(after.plans) == {"pivot"}


async def test_with_nothing_to_fold_no_summary_is_requested() -> None:
    session = make_session(3, 3)
    async with ToyUpstream() as toy, serve(make_settings(toy, more=ADMIN)) as gateway:
        before = await play(gateway, toy, session, 0, 1)
        async with listening(gateway) as heard:
            assert (await ask_to_compact(gateway, before.conversation))[0] == 202
            event = await heard.next("compaction_failed")
        after = await play(gateway, toy, session, 1, 3)
    assert (event["reason"], event["trigger"]) == ("nothing to fold", "manual")
    assert toy.summaries == [] and after.plans[-1] == "passthrough"


async def test_a_second_one_is_refused_while_the_first_runs_and_requests_go_on() -> None:
    session = make_session(16, 3)
    async with ToyUpstream() as toy, serve(make_settings(toy, more=ADMIN)) as gateway:
        before = await play(gateway, toy, session, 0, 12)
        ready = asyncio.Event()
        toy.summary_delivery = Delivery(after=ready)
        assert (await ask_to_compact(gateway, before.conversation))[0] == 202
        assert (await ask_to_compact(gateway, before.conversation))[0] == 409
        meanwhile = await play(gateway, toy, session, 12, 14)
        ready.set()
        await gateway.at_rest()
        after = await play(gateway, toy, session, 14, 16)
    assert meanwhile.plans == ["passthrough"] * 2
    assert after.plans == ["pivot"] * 2
    assert len(toy.summaries) == 1


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"instructions": 1}', b'{"instruction": "x"}', b"\xff"])
async def test_an_invalid_body_an_unknown_conversation_and_another_origin_are_refused(body: bytes) -> None:
    session = make_session(2, 3)
    async with ToyUpstream() as toy, serve(make_settings(toy, more=ADMIN)) as gateway:
        before = await play(gateway, toy, session, 0, 1)
        assert (await ask_to_compact(gateway, before.conversation, body))[0] == 400
        assert (await ask_to_compact(gateway, "0123456789abcdef", b"{}"))[0] == 404
        assert (await ask_to_compact(gateway, before.conversation, b"{}", {"Origin": "http://evil.example"}))[
            0
        ] == 403
