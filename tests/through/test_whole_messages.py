"""A message of the client's leaves whole until the upstream itself has refused it."""

import json
import logging
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.toy.agent import Message, Session, Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.material import make_prose
from tests.toy.product import serve
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

_WINDOW = 16_000

_PRICED = "{input: 1, output: 1}"
_TURNS = make_session(14, 3, "talk", 300)
by_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)


def ask_at_length(toy: ToyUpstream, tokens: int, shape: Shape) -> Session:
    """A session whose first request has about so many tokens, as the upstream counts, nearly all of them in
    one question.
    """
    words = make_prose(random.Random(5), 3 * tokens).split(" ")
    low, high = 0, len(words)
    while high - low > 1:
        middle = (low + high) // 2
        found = with_question(" ".join(words[:middle]))
        low, high = (middle, high) if count(toy, found, shape) <= tokens else (low, middle)
    return with_question(" ".join(words[:low]))


def with_question(text: str) -> Session:
    opening: tuple[Message, ...] = ({"role": "user", "content": text},)
    return replace(_TURNS, opening=opening)


def count(toy: ToyUpstream, session: Session, shape: Shape) -> int:
    return shape.dialect.count(toy.counter, json.loads(session.request(0, shape)))


def read_question(session: Session) -> bytes:
    return json.dumps(session.opening[0]["content"]).encode()


@asynccontextmanager
async def open_house(bias: float = 1.0, price: str = "", more: str = ADMIN) -> AsyncIterator[House]:
    toy = ToyUpstream(window=_WINDOW, bias=bias)
    async with toy, serve(make_settings(toy, price=price, more=more)) as product:
        yield House(toy, product, "sk-toy")


# Tokens as the upstream counts, its count beside ours, and the reply that is asked for.
_FITTING = {"nearly the window": (15_362, 1.0, 500), "half of our count": (9_000, 0.45, 2_000)}


@by_dialect
@pytest.mark.parametrize("case", _FITTING.values(), ids=_FITTING)
async def test_a_question_that_only_our_count_finds_too_long_leaves_whole(
    dialect: Dialect, case: tuple[int, float, int]
) -> None:
    tokens, bias, max_tokens = case
    shape = Shape(dialect=dialect, max_tokens=max_tokens)
    async with open_house(bias) as house:
        session = ask_at_length(house.toy, tokens, shape)
        answer = await house.send(dialect, session.request(0, shape))
    assert answer.is_whole and answer.header("x-gateway-plan") == "passthrough"
    assert [seen.refusal for seen in house.toy.requests] == [None]
    assert read_question(session) in house.toy.chats[0].body


@by_dialect
async def test_a_refused_question_is_cut_by_what_the_refusal_asks_for_and_it_is_said(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    shape = Shape(dialect=dialect, max_tokens=500)
    async with open_house(price=_PRICED) as house:
        session = ask_at_length(house.toy, 24_000, shape)
        with caplog.at_level(logging.WARNING):
            run = await house.play(session, shape, last=1)
        await house.at_rest()
        path = f"/conversations/{run.conversation}"
        (_, row), (_, log) = await house.admin(path), await house.admin(f"{path}/log")
        _, metrics = await house.admin("/metrics")
    assert run.failed == [] and run.plans == ["cut"]
    refused, sent = house.toy.requests
    assert refused.refusal is not None and read_question(session) in refused.body
    # The refusals of Responses have no numbers; then our own count has to do.
    least = 0.85 if dialect.path == "/responses" else 0.95
    assert least * (_WINDOW - 500) < sent.prompt_tokens <= _WINDOW - 500
    assert "characters cut" in sent.body.decode()
    assert "refused" in str(run.answers[0].header("x-gateway-warning"))
    assert any("cut messages that upstream refused" in each.getMessage() for each in caplog.records)
    assert (row["plan"], row["saved_tokens"], row["prunings"]) == ("cut", 0, 0)
    assert not row["saved_usd"] and row["economics"]["with_usd"] == row["economics"]["without_usd"]
    assert [(entry["kind"], entry["reason"]) for entry in log["log"]] == [("cut", "refused")]
    assert 'kind="saved"' not in metrics


@by_dialect
async def test_a_conversation_goes_on_with_the_cut_question_and_is_not_refused_each_turn(
    dialect: Dialect,
) -> None:
    shape = Shape(dialect=dialect, max_tokens=500)
    async with open_house() as house:
        session = ask_at_length(house.toy, 24_000, shape)
        run = await house.play(session, shape)
        # The same question once more, as of a client that tries again.
        again = await house.send(dialect, session.request(0, shape))
    assert run.failed == [] and again.is_whole
    assert set(run.plans) == {"cut"} and None not in [a.header("x-gateway-warning") for a in run.answers]
    assert len(house.toy.requests) <= len(session) + 4
    assert len([seen for seen in house.toy.requests if seen.refusal is not None]) == 1
    # The question changes at most once more, and not with each turn.
    cut = {str(dialect.items(seen.request)[:2]) for seen in run.outgoing[1:]}
    assert len(cut) <= 2


@by_dialect
async def test_a_refusal_without_numbers_cuts_a_part_and_each_retry_is_smaller(dialect: Dialect) -> None:
    shape = Shape(dialect=dialect, max_tokens=500)
    error = b'{"error":{"message":"context_length_exceeded","code":"context_length_exceeded"}}'
    refusal = RawAnswer(status=400, headers=(("Content-Type", "application/json"),), pieces=(error,))
    async with open_house() as house:
        house.toy.intercept = lambda seen: refusal if seen.refusal is not None else None
        session = ask_at_length(house.toy, 19_000, shape)
        answer = await house.send(dialect, session.request(0, shape))
    assert answer.is_whole and answer.header("x-gateway-plan") == "cut"
    sizes = [len(seen.body) for seen in house.toy.requests]
    assert 2 <= len(sizes) <= 3 and sizes == sorted(sizes, reverse=True)
    assert house.toy.requests[-1].prompt_tokens > _WINDOW / 2


@by_dialect
async def test_what_cannot_be_made_to_fit_leaves_whole_and_the_refusal_is_the_answer(
    dialect: Dialect,
) -> None:
    shape = Shape(dialect=dialect, max_tokens=500)
    async with open_house() as house:
        long = ask_at_length(house.toy, 18_000, shape)
        system = {**_TURNS.leading[0], "content": long.opening[0]["content"]}
        session = replace(_TURNS, leading=(system,), opening=({"role": "user", "content": "Go on. " * 400},))
        body = session.request(0, shape)
        answer = await house.send(dialect, body)
        direct = await house.send(dialect, body, **{"x-gateway-bypass": "1"})
    assert (answer.status, answer.body) == (direct.status, direct.body) and answer.status == 400
    assert len({seen.body for seen in house.toy.requests}) == 1 and len(house.toy.requests) == 2


@by_dialect
async def test_a_large_opening_stays_whole_when_old_turns_are_summarized(dialect: Dialect) -> None:
    shape = Shape(dialect=dialect, max_tokens=500)
    async with open_house() as house:
        long = ask_at_length(house.toy, 8_000, shape)
        session = replace(make_session(25, 3, "talk", 300), opening=long.opening)
        run = await house.play(session, shape)
    assert (run.failed, run.refusals) == ([], [])
    assert "pivot" in run.plans and "cut" not in run.plans
    assert all(read_question(session) in seen.body for seen in run.outgoing)


async def test_an_opening_that_is_refused_behind_a_summary_is_cut_there() -> None:
    shape = Shape(max_tokens=500)
    async with open_house() as house:
        long = ask_at_length(house.toy, 14_900, shape)
        session = replace(make_session(20, 3, "talk", 300), opening=long.opening)
        run = await house.play(session, shape)
    assert run.failed == []
    assert len(run.refusals) == 1 and len(run.summaries) <= 5
    assert run.plans[0] == "passthrough" and run.plans[-1] == "cut"
    last = run.outgoing[-1].body
    assert b"characters cut" in last and len(last) < len(run.outgoing[2].body)


async def test_the_window_that_a_warning_names_is_the_upstreams() -> None:
    """Also where the upstream counts more than we do, and a refused request is made to fit our count."""
    session = make_session(60, 11, turn_tokens=1_000)
    toy = ToyUpstream(window=16_384, bias=1.8)
    async with toy, serve(make_settings(toy)) as gateway:
        runs = [
            await run_session(
                session, gateway.base_url, toy, Shape(), Pace(first=at, last=at + 2, key=f"sk-{at}")
            )
            for at in (7, 8)
        ]
    assert [run.failed for run in runs] == [[], []] and all(run.refusals for run in runs)
    warnings = " ".join(str(answer.header("x-gateway-warning")) for run in runs for answer in run.answers)
    assert set(re.findall(r"the window of (\d+) tokens", warnings)) <= {"16384"}
