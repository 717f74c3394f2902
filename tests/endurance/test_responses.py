"""A scripted coding agent that speaks Responses works far past its window, whatever it leaves to upstream."""

import random
from dataclasses import dataclass

import pytest

from tests.toy.agent import Session, Shape, find_tokens, make_session, with_thinking
from tests.toy.counting import TokenCounter
from tests.toy.economics import prefix_reuse, sent_with_opening, summary_budget
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.responses import History, Responses
from tests.toy.running import Run, run_session
from tests.toy.upstream import ToyUpstream

# As in test_agent.
TURN_TOKENS = {16_000: 500, 32_000: 750}


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
]


async def play(case: Case) -> Run:
    toy = ToyUpstream(window=case.window, bias=case.bias)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        return await run_session(case.session, gateway.base_url, toy, case.shape)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_every_request_is_answered_at_a_fair_price(case: Case) -> None:
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


@pytest.mark.timeout(300)
async def test_a_window_that_nobody_knows_is_learned_from_its_refusals() -> None:
    session = make_session(40, 40, "many_users", 500)
    toy = ToyUpstream(window=16_000)
    settings = f'store: "memory:"\nupstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
    for history in ("whole", "previous"):
        toy = ToyUpstream(window=16_000)
        async with toy:
            settings = (
                f'store: "memory:"\nupstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
            )
            async with running_gateway(settings) as gateway:
                shape = Shape(dialect=Responses(history=history), max_tokens=1_000, stream=True)
                run = await run_session(session, gateway.base_url, toy, shape)
        assert run.failed == []
        assert 1 <= len([seen for seen in run.seen if seen.status >= 400]) <= 6
