"""A scripted agent that speaks Responses works far past its window, also with a history stored upstream."""

import json
import random
from dataclasses import dataclass

import aiohttp
import pytest

from tests.covering import cover
from tests.toy.agent import Session, Shape, find_tokens, make_session, with_thinking
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Since
from tests.toy.economics import prefix_reuse, sent_with_opening, summary_budget
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.responses import History, Responses
from tests.toy.running import Pace, Run, ask, run_session
from tests.toy.upstream import ToyUpstream

# As in test_agent.
TURN_TOKENS = {16_000: 500, 32_000: 750, 128_000: 2_500}


@dataclass(frozen=True)
class Case:
    turns: int
    window: int
    stream: bool
    history: History
    thinks: bool

    @property
    def bias(self) -> float:
        """Drawn per case, and the same in every run of it, so that a failure comes back."""
        return round(random.Random(repr(self)).uniform(0.7, 1.6), 2)

    @property
    def session(self) -> Session:
        session = make_session(self.turns, self.turns, "many_users", TURN_TOKENS[self.window])
        return with_thinking(session) if self.thinks else session

    @property
    def shape(self) -> Shape:
        dialect = Responses(history=self.history, typed=not self.thinks)
        return Shape(dialect=dialect, max_tokens=4_096, stream=self.stream)

    def __str__(self) -> str:
        streamed = "streamed" if self.stream else "whole"
        thinks = "thinking" if self.thinks else "plain"
        return f"{self.turns}-turns-{self.window}-{streamed}-{self.history}-{thinks}-bias-{self.bias}"


CASES = [
    Case(turns, window, stream, history, thinks)
    for turns, window in ((40, 16_000), (60, 32_000))
    for stream in (True, False)
    for history in ("whole", "references", "previous")
    for thinks in (True, False)
] + [Case(150, 128_000, stream=True, history="whole", thinks=True)]
COVER = cover(CASES, lambda case: (case.window, case.stream, case.history, case.thinks))


async def play(case: Case) -> Run:
    toy = ToyUpstream(window=case.window, bias=case.bias)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        return await run_session(case.session, gateway.base_url, toy, case.shape)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", COVER, ids=str)
async def test_every_request_succeeds_with_few_summaries_and_a_reused_prefix(case: Case) -> None:
    session, counter = case.session, TokenCounter(case.bias)
    run = await play(case)

    assert run.failed == []
    assert run.refusals == []
    assert run.summaries
    assert len(run.summaries) <= summary_budget(session, counter, case.window)
    assert prefix_reuse(run.prompts) >= 0.85
    assert all(sent_with_opening(run.prompts, session, case.shape))
    said = [fact for fact in session.facts if fact.turn < case.turns - 1]
    assert run.facts_lost(find_tokens(said, "user", "assistant")) == []


def is_named(body: bytes) -> bool:
    return b'"previous_response_id"' in body


@pytest.mark.timeout(300)
async def test_a_named_history_keeps_its_name_until_it_must_be_rewritten() -> None:
    case = Case(40, 16_000, stream=True, history="previous", thinks=True)
    run = await play(case)
    assert {answer.header("x-gateway-plan") for answer in run.answers} >= {"passthrough", "pivot"}
    # The first request has no earlier response to name. The others are rewritten where their plan changes.
    rewritten = [turn for turn, seen in enumerate(run.outgoing) if not is_named(seen.body)]
    clamped = [answer for answer in run.answers if answer.header("x-gateway-max-tokens") is not None]
    pruned = [plan for plan in run.plans if plan is not None and "pruned" in plan]
    assert rewritten[0] == 0 and len(rewritten) >= 2
    assert len(rewritten) <= 1 + len(run.summaries) + len(clamped) + len(pruned)
    for turn in {*range(case.turns)} - {*rewritten}:
        assert run.outgoing[turn].body == case.session.request(turn, case.shape, run.sinces[turn])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("history", ["references", "previous"])
async def test_references_unknown_after_a_restart_are_passed_on_unchanged(history: History) -> None:
    session = with_thinking(make_session(12, 3, "many_users", 500))
    shape = Shape(dialect=Responses(history=history), max_tokens=1_000)
    toy = ToyUpstream(window=64_000)
    async with toy:
        async with running_gateway(make_settings(toy)) as gateway:
            first = await run_session(session, gateway.base_url, toy, shape, Pace(last=6))
        since = Since(turn=5, response_id=first.answers[-1].response_id or "")
        body = session.request(6, shape, since)
        async with running_gateway(make_settings(toy)) as gateway, aiohttp.ClientSession() as client:
            answer = await ask(client, f"{gateway.base_url}/responses", body)
    assert first.failed == []
    assert answer.is_whole
    assert toy.chats[-1].body == body


@pytest.mark.timeout(300)
@pytest.mark.parametrize("history", ["whole", "previous"])
async def test_an_unknown_window_is_learned_from_its_refusals(history: History) -> None:
    session = make_session(40, 40, "many_users", 500)
    shape = Shape(dialect=Responses(history=history), max_tokens=1_000, stream=True)
    toy = ToyUpstream(window=16_000)
    async with toy:
        upstream = f'{{base_url: "{toy.base_url}", discover: false}}'
        settings = f'store: "memory:"\nupstreams: {{default: {upstream}}}\n'
        async with running_gateway(settings) as gateway:
            run = await run_session(session, gateway.base_url, toy, shape)
    assert run.failed == []
    assert 1 <= len([seen for seen in run.seen if seen.status >= 400]) <= 6


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_passes_and_nothing_in_it_is_cut(stream: bool) -> None:
    """Others may add to it beside the gateway, so its history is never known for certain."""
    toy = ToyUpstream(window=4_000)
    bodies: list[bytes] = []
    async with toy, running_gateway(make_settings(toy)) as gateway, aiohttp.ClientSession() as client:
        created = await ask(client, f"{gateway.base_url}/conversations", b"{}")
        request = {"model": "toy-model", "conversation": json.loads(created.body)["id"], "stream": stream}
        answers = []
        for number in range(10):
            text = f"{number} " + "word " * 600
            bodies.append(json.dumps(request | {"input": [{"role": "user", "content": text}]}).encode())
            answers.append(await ask(client, f"{gateway.base_url}/responses", bodies[-1]))
    assert [seen.body for seen in toy.chats] == bodies
    assert answers[2].is_whole
    # The upstream's own error reaches the client.
    error = json.loads(answers[-1].body)["error"]
    assert (answers[-1].status, error["code"]) == (400, "context_length_exceeded")
