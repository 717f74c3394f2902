"""Compaction because a person asks for it: at once, or at the conversation's next request."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.reporting.events import CompactBoundary, Compacted, CompactionFailed
from tests.toy.agent import Session, make_session
from tests.toy.delivery import Delivery
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0}\n"
_RESUME = "Continue if you have next steps"
_SEPARATOR = "(end of the summary)"


async def post(
    gateway: RunningGateway,
    conversation: str | None,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{gateway.handle.admin_port}/api/conversations/{conversation}/compact"
    async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def play(gateway: RunningGateway, toy: ToyUpstream, session: Session, first: int, last: int) -> Run:
    run = await run_session(session, gateway.base_url, toy, pace=Pace(first=first, last=last))
    assert run.failed == [] and run.refusals == []
    return run


def identity_of(run: Run) -> str:
    return run.answers[-1].header("x-gateway-conversation") or ""


def texts_of(run: Run) -> list[Any]:
    messages: Any = run.outgoing[-1].request["messages"]
    return [message.get("content") for message in messages]


async def finished(gateway: RunningGateway) -> None:
    """Until no compaction by hand is under way."""
    await wait_until(lambda: gateway.handle.is_idle)


async def test_a_compaction_asked_for_between_two_requests_applies_from_the_next_one_on() -> None:
    session = make_session(14, 3)
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        before = await play(gateway, toy, session, 0, 12)
        with gateway.handle.bus.subscribe() as heard:
            told = await post(gateway, identity_of(before), b'{"instructions": "Keep ticket numbers."}')
            assert told == (202, {"id": identity_of(before), "begins": "now"})
            await finished(gateway)
            boundary, compacted = await heard.next(), await heard.next()
        after = await play(gateway, toy, session, 12, 14)
    (summary,) = toy.summaries
    assert b"Keep ticket numbers." in summary.body
    assert [answer.header("x-gateway-plan") for answer in after.answers] == ["pivot", "pivot"]
    assert identity_of(after) == identity_of(before)
    assert after.outgoing[0].prompt_tokens < before.outgoing[-1].prompt_tokens
    # Nobody was interrupted: no resume text, and roles alternate all the same.
    texts = texts_of(after)
    assert _RESUME not in texts and texts.count(_SEPARATOR) == 1
    assert isinstance(boundary, CompactBoundary) and boundary.compact_metadata.trigger == "manual"
    assert isinstance(compacted, Compacted) and compacted.post_tokens < compacted.pre_tokens
    # What the conversation held after its last answer, by upstream's own count.
    last = before.outgoing[-1].prompt_tokens
    assert last * 0.9 < compacted.pre_tokens < last * 1.2


@pytest.mark.parametrize("more", ["", "policies: {default: {compaction: {auto: false}}}\n"])
async def test_it_needs_neither_a_known_window_nor_automatic_compaction(more: str) -> None:
    session = make_session(14, 3)
    async with ToyUpstream() as toy:
        settings = make_settings(toy, more=_ADMIN + more).replace("toy-*", "toy-*" if more else "other-*")
        async with running_gateway(settings) as gateway:
            before = await play(gateway, toy, session, 0, 12)
            assert (await post(gateway, identity_of(before)))[0] == 202
            await finished(gateway)
            after = await play(gateway, toy, session, 12, 14)
    assert [answer.header("x-gateway-plan") for answer in after.answers] == ["pivot", "pivot"]
    assert len(toy.summaries) == 1


async def test_a_second_one_builds_on_the_first() -> None:
    session = make_session(26, 3)
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        for first, last in ((0, 12), (12, 24)):
            run = await play(gateway, toy, session, first, last)
            await post(gateway, identity_of(run))
            await finished(gateway)
        after = await play(gateway, toy, session, 24, 26)
    _, second = toy.summaries
    # Leading block, task, and the first summary, which the second call was given.
    earlier = texts_of(run)[2]
    asked: Any = second.request["messages"]
    assert earlier and earlier in asked[-1]["content"]
    assert earlier not in texts_of(after) and texts_of(after).count(_SEPARATOR) == 1


async def test_a_conversation_whose_body_is_gone_is_compacted_at_its_next_request() -> None:
    session, other = make_session(16, 3), make_session(2, 4)
    more = _ADMIN + "cache: {bodies: 1}\n"
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        before = await play(gateway, toy, session, 0, 12)
        await play(gateway, toy, other, 0, 1)
        status, told = await post(gateway, identity_of(before), b'{"instructions": "Keep names."}')
        assert (status, told["begins"]) == (202, "at the next request")
        assert toy.summaries == []
        await play(gateway, toy, session, 12, 13)
        await finished(gateway)
        after = await play(gateway, toy, session, 13, 16)
    (summary,) = toy.summaries
    assert b"Keep names." in summary.body
    assert {answer.header("x-gateway-plan") for answer in after.answers} == {"pivot"}
    assert _RESUME not in texts_of(after)


async def test_what_was_asked_for_survives_a_restart(tmp_path: Path) -> None:
    session, other = make_session(16, 3), make_session(2, 4)
    async with ToyUpstream() as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}", more=_ADMIN + "cache: {bodies: 1}\n")
        async with running_gateway(settings) as gateway:
            before = await play(gateway, toy, session, 0, 12)
            await play(gateway, toy, other, 0, 1)
            await post(gateway, identity_of(before))
        async with running_gateway(settings) as gateway:
            await play(gateway, toy, session, 12, 13)
            await finished(gateway)
        async with running_gateway(settings) as gateway:
            after = await play(gateway, toy, session, 13, 14)
    assert len(toy.summaries) == 1
    assert [answer.header("x-gateway-plan") for answer in after.answers] == ["pivot"]


async def test_where_there_is_nothing_to_fold_nobody_is_called() -> None:
    session = make_session(3, 3)
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        before = await play(gateway, toy, session, 0, 1)
        with gateway.handle.bus.subscribe() as heard:
            assert (await post(gateway, identity_of(before)))[0] == 202
            event = await heard.next()
        after = await play(gateway, toy, session, 1, 3)
    assert isinstance(event, CompactionFailed)
    assert (event.reason, event.trigger) == ("nothing to fold", "manual")
    assert toy.summaries == [] and after.answers[-1].header("x-gateway-plan") == "passthrough"


async def test_while_one_is_under_way_a_second_is_refused_and_requests_go_on() -> None:
    session = make_session(16, 3)
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        before = await play(gateway, toy, session, 0, 12)
        toy.summary_delivery = Delivery(before_headers_seconds=0.5)
        assert (await post(gateway, identity_of(before)))[0] == 202
        assert (await post(gateway, identity_of(before)))[0] == 409
        meanwhile = await play(gateway, toy, session, 12, 14)
        await finished(gateway)
        after = await play(gateway, toy, session, 14, 16)
    assert [answer.header("x-gateway-plan") for answer in meanwhile.answers] == ["passthrough"] * 2
    assert [answer.header("x-gateway-plan") for answer in after.answers] == ["pivot"] * 2
    assert len(toy.summaries) == 1


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"instructions": 1}', b'{"instruction": "x"}', b"\xff"])
async def test_what_cannot_be_understood_is_400(body: bytes) -> None:
    session = make_session(2, 3)
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        before = await play(gateway, toy, session, 0, 1)
        assert (await post(gateway, identity_of(before), body))[0] == 400
        assert (await post(gateway, "0123456789abcdef", b"{}"))[0] == 404
        assert (await post(gateway, identity_of(before), b"{}", {"Origin": "http://evil.example"}))[0] == 403
