"""Searching the messages that a conversation does not send any more."""

import logging
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.toy.admin_port import ADMIN, ADMIN_WITHOUT_TOKEN, get, get_json
from tests.toy.agent import Fact, Session, Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

_SHAPE = Shape(max_tokens=1_000)
_SESSION = make_session(45, 3)
_ODD = (
    '"',
    '" OR *',
    "NEAR(a b)",
    "*",
    "a:b",
    "-",
    "\x00",
    "\ufffd",
    "' OR 1=1 --",
    "漢字",
    "💩" * 300,
    "(" * 999,
)


def _find_folded(session: Session) -> Fact:
    """A fact of an early turn, which the first compaction takes out."""
    return next(fact for fact in session.facts if fact.turn > 0)


async def _play(gateway: RunningGateway, toy: ToyUpstream, pace: Pace | None = None) -> Run:
    run = await run_session(_SESSION, gateway.base_url, toy, _SHAPE, pace or Pace())
    await gateway.settle()
    return run


def _path(run: Run, query: str, more: str = "") -> str:
    return f"/v1/conversations/{run.conversation}/search?q={quote(query)}{more}"


async def test_a_message_that_was_folded_is_found_by_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    fact = _find_folded(_SESSION)
    caplog.set_level(logging.INFO, "gateway.admin")
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await _play(gateway, toy)
        page = await get_json(gateway, _path(run, fact.token))
        few = await get_json(gateway, _path(run, "file", "&limit=2"))
        nothing = await get_json(gateway, _path(run, "zzyzx-nowhere"))
        metrics = gateway.parts.foundation.metrics.render().decode()
    first = page["found"][0]
    assert (page["id"], first["conversation"]) == (run.conversation, run.conversation)
    assert fact.token in first["text"] and first["end"] - first["start"] == len(first["text"])
    assert first["position"] > 0 and first["when"].endswith("+00:00")
    assert len(few["found"]) == 2
    assert nothing["found"] == []
    shown = [record.getMessage() for record in caplog.records if "texts shown" in record.getMessage()]
    assert [line.split(" to=")[0] for line in shown] == [
        f"texts shown: conversation={run.conversation} what=search"
    ] * 2
    assert not any(fact.token in record.getMessage() for record in caplog.records)
    assert 'gateway_recall_searches_total{result="found",way="admin"} 2.0' in metrics
    assert 'gateway_recall_searches_total{result="nothing",way="admin"} 1.0' in metrics


async def test_no_query_is_an_error_of_the_gateway() -> None:
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await _play(gateway, toy)
        assert [(await get(gateway, _path(run, query)))[0] for query in _ODD] == [200] * len(_ODD)
        assert (await get(gateway, _path(run, "")))[0] == 400
        assert (await get(gateway, f"/v1/conversations/{'0' * 16}/search?q=x"))[0] == 404


async def test_a_search_that_fails_is_a_problem_and_no_empty_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.originals.index._QUERY_SECONDS", -1.0)
    monkeypatch.setattr("gateway.originals.index._STEPS", 1)
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await _play(gateway, toy)
        status, body = await get(gateway, _path(run, "canary"))
        metrics = gateway.parts.foundation.metrics.render().decode()
    assert status == 503 and b"could not be searched: the query took too long" in body
    assert b"canary" not in body
    assert 'gateway_recall_searches_total{result="failed",way="admin"} 1.0' in metrics


async def test_without_a_token_nothing_is_found() -> None:
    more = ADMIN_WITHOUT_TOKEN + "policies: {default: {show_texts: false}}\n"
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        run = await _play(gateway, toy)
        status, body = await get(gateway, _path(run, _find_folded(_SESSION).token))
    assert status == 403
    assert _find_folded(_SESSION).token.encode() not in body


async def test_a_branch_finds_what_was_folded_before_it_branched_off() -> None:
    fact = _find_folded(_SESSION)
    other = make_session(45, 4)
    branch = replace(_SESSION, turns=(*_SESSION.turns[:35], *other.turns[35:]))
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        run = await _play(gateway, toy)
        branched = await run_session(branch, gateway.base_url, toy, _SHAPE, Pace(first=35, last=38))
        await gateway.settle()
        page = await get_json(gateway, _path(branched, fact.token))
    assert branched.conversation != run.conversation
    assert page["id"] == branched.conversation
    assert {(each["conversation"], fact.token in each["text"]) for each in page["found"][:1]} == {
        (run.conversation, True)
    }


async def test_what_an_earlier_process_has_kept_is_found(tmp_path: Path) -> None:
    fact = _find_folded(_SESSION)
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=ADMIN)
        async with running_gateway(settings) as gateway:
            run = await _play(gateway, toy)
            before = await get_json(gateway, _path(run, fact.token))
        async with running_gateway(settings) as gateway:
            assert await get_json(gateway, _path(run, fact.token)) == before
    assert before["found"]
