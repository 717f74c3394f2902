"""A scripted agent that speaks Anthropic Messages works far past its window without an error."""

from dataclasses import dataclass, replace

import pytest

from tests.covering import cover
from tests.toy.agent import Session, Shape, Style, find_tokens, make_session, with_thinking
from tests.toy.counting import TokenCounter
from tests.toy.economics import prefix_reuse, sent_with_opening, summary_budget
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.messages import Messages
from tests.toy.running import Answer, Run, run_session
from tests.toy.upstream import ToyUpstream

_TURN_TOKENS = {16_000: 500, 32_000: 750, 128_000: 2_500}


@dataclass(frozen=True)
class Case:
    turns: int
    window: int
    max_tokens: int
    stream: bool
    thinks: bool
    style: Style
    bias: float

    @property
    def session(self) -> Session:
        session = make_session(self.turns, self.turns, self.style, _TURN_TOKENS[self.window])
        return with_thinking(session) if self.thinks else session

    @property
    def shape(self) -> Shape:
        # Without thinking, marks are left out: both kinds of clients are there.
        return Shape(dialect=Messages(marks=self.thinks), max_tokens=self.max_tokens, stream=self.stream)

    def __str__(self) -> str:
        streamed = "streamed" if self.stream else "whole"
        thinking = "thinking" if self.thinks else "marks-nothing"
        return f"{self.turns}-{self.window}-output-{self.max_tokens}-{streamed}-{thinking}-{self.style}"


_SIZES: tuple[tuple[int, Style], ...] = ((4_096, "one_user"), (32_000, "many_users"))
# No provider accepts a thinking budget larger than the window.
CASES = [
    Case(turns, window, min(max_tokens, 8_192) if thinks else max_tokens, stream, thinks, style, bias)
    for turns, window, bias in ((40, 16_000, 1.3), (60, 32_000, 0.8))
    for max_tokens, style in _SIZES
    for stream in (True, False)
    for thinks in (True, False)
] + [Case(150, 128_000, 8_192, stream=True, thinks=True, style="many_users", bias=1.1)]
COVER = cover(CASES, lambda case: (case.window, case.style, case.stream, case.thinks))


async def play(case: Case, settings: str = "") -> tuple[ToyUpstream, Run]:
    toy = ToyUpstream(window=case.window, bias=case.bias)
    async with toy, running_gateway(settings or make_settings(toy)) as gateway:
        return toy, await run_session(case.session, gateway.base_url, toy, case.shape)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", COVER, ids=str)
async def test_every_request_succeeds_with_few_summaries_and_a_reused_prefix(case: Case) -> None:
    session, counter = case.session, TokenCounter(case.bias)
    _, run = await play(case)
    assert run.failed == []
    assert run.refusals == []
    assert len(run.summaries) <= summary_budget(session, counter, case.window, case.shape)
    assert prefix_reuse(run.prompts) >= 0.85
    assert all(sent_with_opening(run.prompts, session, case.shape))
    # The last turn's own reply is never sent, so its facts cannot have been seen.
    said = [fact for fact in session.facts if fact.turn < case.turns - 1]
    assert run.facts_lost(find_tokens(said, "user", "assistant")) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("how", ["whole", "streamed", "streamed, refused behind its start"])
async def test_an_unknown_window_is_learned_from_one_refusal(how: str, thinks: bool) -> None:
    case = replace(CASES[0], stream=how != "whole", max_tokens=3_000, thinks=thinks)
    toy = ToyUpstream(window=case.window, bias=case.bias)
    toy.refuses_in_stream = "behind" in how
    async with toy:
        settings = make_settings(toy).replace('"toy-*"', '"another-*"')
        async with running_gateway(settings) as gateway:
            run = await run_session(case.session, gateway.base_url, toy, case.shape)
    assert run.failed == []
    assert len(run.refusals) == 1
    assert len(run.summaries) >= 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("turns", "window"), [(40, 16_000), (60, 32_000)])
async def test_instructions_in_between_are_kept_in_place_and_survive_a_compaction(
    turns: int, window: int
) -> None:
    """Claude Code sends system messages between the others to models that it takes for the newest."""
    dialect = Messages(instructs=True)
    session = with_thinking(make_session(turns, turns, "many_users", _TURN_TOKENS[window]))
    shape = Shape(dialect=dialect, max_tokens=4_096, stream=True)
    toy = ToyUpstream(window=window, bias=1.1)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        run = await run_session(session, gateway.base_url, toy, shape)
    assert run.failed == []
    assert run.refusals == []
    assert 1 <= len(run.summaries) <= summary_budget(session, TokenCounter(1.1), window, shape)
    assert all(sent_with_opening(run.prompts, session, shape))
    untouched = [turn for turn, answer in enumerate(run.answers) if is_untouched(answer)]
    assert len(untouched) >= 10
    for turn in untouched:
        assert run.outgoing[turn].body == session.request(turn, shape)
    assert b'"thinking":{"type":"adaptive"}' in run.outgoing[-1].body
    assert b'"role":"system"' in run.outgoing[-1].body


def is_untouched(answer: Answer) -> bool:
    is_clamped = answer.header("x-gateway-max-tokens") is not None
    return answer.header("x-gateway-plan") == "passthrough" and not is_clamped
