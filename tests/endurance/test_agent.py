"""A scripted coding agent works far past its window without an error."""

import json
import random
from dataclasses import dataclass

import aiohttp
import pytest

from tests.covering import cover
from tests.toy.agent import Session, Shape, Style, find_tokens, make_session
from tests.toy.counting import TokenCounter
from tests.toy.economics import prefix_breaks, prefix_reuse, sent_with_opening, summary_budget
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import Run, ask, run_session
from tests.toy.summarising import find_facts
from tests.toy.upstream import ToyUpstream

# Tokens that a turn adds, at bias 1.0; the upstream counts 0.7 to 1.6 times as many. Chosen so that every
# window is outgrown, and so that the reuse asked for is possible: at 16K a single 1,200-token turn is 10 %
# of a prompt.
TURN_TOKENS = {16_000: 500, 32_000: 750, 128_000: 2_500}


@dataclass(frozen=True)
class Case:
    turns: int
    window: int
    max_tokens: int
    stream: bool
    style: Style

    @property
    def bias(self) -> float:
        """Drawn per case, and the same in every run of it, so that a failure comes back."""
        return round(random.Random(repr(self)).uniform(0.7, 1.6), 2)

    @property
    def session(self) -> Session:
        return make_session(self.turns, self.turns, self.style, TURN_TOKENS[self.window])

    def __str__(self) -> str:
        streamed = "streamed" if self.stream else "whole"
        size = f"{self.turns}-turns-{self.window}-output-{self.max_tokens}"
        return f"{size}-{streamed}-{self.style}-bias-{self.bias}"


CASES = [
    Case(turns, window, max_tokens, stream, style)
    for turns, window in ((40, 16_000), (60, 32_000), (150, 128_000))
    for max_tokens in (1_000, 4_096, 8_192, 32_000)
    for stream in (True, False)
    for style in ("one_user", "many_users")
]
COVER = cover(CASES, lambda case: (case.window, case.max_tokens, case.stream, case.style))


async def play(case: Case) -> Run:
    shape = Shape(max_tokens=case.max_tokens, stream=case.stream)
    toy = ToyUpstream(window=case.window, bias=case.bias)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        return await run_session(case.session, gateway.base_url, toy, shape)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", COVER, ids=str)
async def test_every_request_succeeds_with_few_summaries_and_a_reused_prefix(case: Case) -> None:
    session, counter = case.session, TokenCounter(case.bias)
    run = await play(case)
    outgoing = [seen.body for seen in run.outgoing]

    assert run.failed == []
    assert run.refusals == []
    assert len(run.summaries) <= summary_budget(session, counter, case.window)
    assert prefix_reuse(outgoing) >= 0.85
    assert all(sent_with_opening([seen.request for seen in run.outgoing], session))
    # The last turn's own reply is never sent, so its facts cannot have been seen.
    said = [fact for fact in session.facts if fact.turn < case.turns - 1]
    assert run.facts_lost(find_tokens(said, "user", "assistant")) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case", cover(CASES[:4], lambda case: (case.stream, case.style), strength=1), ids=str
)
async def test_the_prefix_breaks_only_at_a_compaction_or_a_prune_batch(case: Case) -> None:
    run = await play(case)
    plans = [answer.header("x-gateway-plan") for answer in run.answers]
    # An upper bound only: a batch is counted for every request that it is in force for.
    breaks = prefix_breaks([seen.body for seen in run.outgoing])
    batches = sum("pruned" in (plan or "") for plan in plans)
    assert len(breaks) <= len(run.summaries) + batches


@pytest.mark.timeout(300)
@pytest.mark.parametrize("windows", [1.5, 3.0])
async def test_a_long_conversation_without_tools_is_summarized_in_chunks(windows: float) -> None:
    """The first request is a conversation without tools, larger than the window of the summary call."""
    words = [f"Note {number}: FACT-{number:08d} " + "we agreed on the plan. " * 60 for number in range(200)]
    roles = ("user", "assistant")
    toy = ToyUpstream(window=16_000, bias=1.0)
    messages: list[dict[str, str]] = [{"role": "system", "content": "You talk."}]
    while toy.counter.messages(messages) < windows * 16_000:
        messages.append({"role": roles[(len(messages) - 1) % 2], "content": words[len(messages)]})
    messages.append(
        {"role": "user", "content": "And now?"}
        if messages[-1]["role"] == "assistant"
        else {"role": "assistant", "content": "Yes."}
    )
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "And now?"})
    body = json.dumps({"model": "toy-model", "messages": messages}).encode()
    async with toy, running_gateway(make_settings(toy)) as gateway, aiohttp.ClientSession() as client:
        answer = await ask(client, f"{gateway.base_url}/chat/completions", body)
    assert answer.status == 200, answer.body
    assert [seen.refusal for seen in toy.requests if seen.refusal] == []
    assert 1 <= len(toy.summaries) <= 8
    visible = set(find_facts(toy.chats[-1].request)) | {fact for s in toy.summaries for fact in s.facts}
    assert visible >= set(find_facts({"messages": messages}))
