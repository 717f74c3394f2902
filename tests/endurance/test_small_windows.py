"""A coding agent whose system prompt and tools take a third of a small window."""

import logging
import random
from dataclasses import dataclass, replace

import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Dialect
from tests.toy.economics import measure
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.material import make_prose
from tests.toy.messages import MESSAGES
from tests.toy.responses import RESPONSES
from tests.toy.running import Run, run_session
from tests.toy.upstream import ToyUpstream

_REQUESTS = 60


@dataclass(frozen=True)
class Case:
    window: int
    floor: int
    turn: int

    @property
    def session(self) -> Session:
        session = make_session(_REQUESTS, 3, turn_tokens=self.turn)
        counter = TokenCounter(1.0)
        missing = self.floor - measure(session, counter).floor_tokens
        prose = make_prose(random.Random(5), 2 * missing).split(" ")
        words = int(len(prose) * missing / counter.text(" ".join(prose)))
        system = {**session.leading[0], "content": " ".join(prose[:words])}
        return replace(session, leading=(session.leading[0], system))

    def __str__(self) -> str:
        return f"{self.window}-floor-{self.floor}-turn-{self.turn}"


async def play(case: Case, dialect: Dialect = CHAT, summary_tokens: int | None = None) -> Run:
    shape = Shape(dialect=dialect, max_tokens=2_000, stream=True)
    toy = ToyUpstream(window=case.window, bias=1.0)
    toy.summary_tokens = summary_tokens
    async with toy, running_gateway(make_settings(toy)) as gateway:
        return await run_session(case.session, gateway.base_url, toy, shape)


def count_compactions(run: Run) -> int:
    """Summaries, and digests in their place."""
    plans = run.plans
    return len(run.summaries) + plans.count("digest")


# Turns of 5 % of the window. Without a rule for turns there were 15 and 12 summaries.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [Case(24_000, 8_000, 1_200), Case(48_000, 16_000, 2_400)], ids=str)
async def test_six_turns_fit_between_two_compactions(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = await play(case)
    assert (run.failed, run.refusals) == ([], [])
    assert 1 <= count_compactions(run) <= _REQUESTS / 6 + 1
    assert [answer.header("x-gateway-warning") for answer in run.answers] == [None] * _REQUESTS
    assert "is small for this client" not in caplog.text


# As Codex and Qwen Code in tests/agents: 8 % of the window. Without the rule there were 30 and 27 summaries.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [Case(24_000, 8_000, 1_920), Case(48_000, 16_000, 3_840)], ids=str)
async def test_a_window_that_is_too_small_is_named_with_one_that_would_do(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run = await play(case)
    assert (run.failed, run.refusals) == ([], [])
    assert 1 <= count_compactions(run) <= _REQUESTS / 4 + 1
    compacted = next(i for i, plan in enumerate(run.plans) if plan != "passthrough")
    warnings = [answer.header("x-gateway-warning") for answer in run.answers]
    assert all(f"the window of {case.window} tokens is small" in str(each) for each in warnings[compacted:])
    logged = [each.getMessage() for each in caplog.records if "is small for this client" in each.getMessage()]
    assert len(logged) == 1 and "would hold 6" in logged[0]


# 1,024 tokens are asked for, and every upstream cuts off what is longer than the request allows.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=["chat", "messages", "responses"])
async def test_a_summary_that_is_longer_than_asked_is_used(
    dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run = await play(Case(24_000, 8_000, 1_920), dialect, summary_tokens=1_500)
    assert (run.failed, run.refusals) == ([], [])
    assert "digest" not in run.plans and "compaction failed" not in caplog.text
    assert 1 <= len(run.summaries) <= _REQUESTS / 4 + 1
