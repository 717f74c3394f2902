"""A scripted agent that leaves its history with the upstream, in Messages threads, far past its window."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from tests.covering import cover
from tests.toy.agent import Session, Shape, find_tokens, make_session, with_thinking
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Since
from tests.toy.economics import prefix_reuse, sent_with_opening, summary_budget
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.messages import Messages
from tests.toy.running import Pace, Run, ask, run_session
from tests.toy.threads import find_thread_error
from tests.toy.upstream import Seen, ToyUpstream

TURN_TOKENS = {16_000: 500, 32_000: 750}
THREADS = Messages(threads=True)


@dataclass(frozen=True)
class Case:
    turns: int
    window: int
    stream: bool
    thinks: bool

    @property
    def bias(self) -> float:
        return round(random.Random(repr(self)).uniform(0.7, 1.6), 2)

    @property
    def session(self) -> Session:
        session = make_session(self.turns, self.turns, "many_users", TURN_TOKENS[self.window])
        return with_thinking(session) if self.thinks else session

    @property
    def shape(self) -> Shape:
        return Shape(dialect=replace(THREADS, marks=self.thinks), max_tokens=4_096, stream=self.stream)

    def __str__(self) -> str:
        streamed = "streamed" if self.stream else "whole"
        return f"{self.turns}-{self.window}-{streamed}-{'thinking' if self.thinks else 'plain'}"


CASES = [
    Case(turns, window, stream, thinks)
    for turns, window in ((60, 16_000), (90, 32_000))
    for stream in (True, False)
    for thinks in (True, False)
]
COVER = cover(CASES, lambda case: (case.window, case.stream, case.thinks))


def read_thread(seen: Seen) -> Mapping[str, object]:
    thread = seen.request.get("thread")
    return thread if isinstance(thread, dict) else {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", COVER, ids=str)
async def test_a_thread_goes_on_past_its_window_without_an_error(case: Case) -> None:
    session, counter = case.session, TokenCounter(case.bias)
    toy = ToyUpstream(window=case.window, bias=case.bias)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        run = await run_session(session, gateway.base_url, toy, case.shape)
    assert run.failed == [] and run.replays == () and run.refusals == []
    assert len(run.summaries) >= 2
    assert len(run.summaries) <= summary_budget(session, counter, case.window)
    assert prefix_reuse(run.prompts) >= 0.8
    whole = replace(case.shape, dialect=Messages(marks=case.thinks))
    assert all(sent_with_opening(run.prompts, session, whole))
    said = [fact for fact in session.facts if fact.turn < case.turns - 1]
    assert run.facts_lost(find_tokens(said, "user", "assistant")) == []
    # As it came while nothing else has to change, and under a new thread where something has.
    kinds = [read_thread(seen).get("type") for seen in run.outgoing]
    begun = [turn for turn, kind in enumerate(kinds) if kind == "create"]
    clamped = [answer for answer in run.answers if answer.header("x-gateway-max-tokens") is not None]
    pruned = [plan for plan in run.plans if plan is not None and "pruned" in plan]
    assert begun[0] == 0 and len(begun) >= 3
    assert len(begun) <= 1 + len(run.summaries) + len(clamped) + len(pruned)
    for turn in {*range(case.turns)} - {*begun}:
        assert run.outgoing[turn].body == case.session.request(turn, case.shape, run.sinces[turn])


@pytest.mark.timeout(300)
async def test_a_continued_thread_is_understood_as_the_history_sent_in_full(tmp_path: Path) -> None:
    """The same summaries at the same turns, of the same messages."""
    case = Case(40, 16_000, stream=True, thinks=True)
    # On a request that only names its history no summary can ride.
    more = "policies: {default: {summary: {ride: never}}}\n"
    runs = []
    for dialect in (Messages(), THREADS):
        toy = ToyUpstream(window=case.window)
        async with toy, running_gateway(make_settings(toy, more=more)) as gateway:
            shape = replace(case.shape, dialect=dialect)
            runs.append(await run_session(case.session, gateway.base_url, toy, shape))
            await gateway.settle()
    in_full, threaded = runs
    assert threaded.plans == in_full.plans
    assert [seen.body for seen in threaded.summaries] == [seen.body for seen in in_full.summaries]
    items = Messages().items
    assert [items(prompt) for prompt in threaded.prompts] == [items(prompt) for prompt in in_full.prompts]
    assert threaded.conversation == in_full.conversation


@pytest.mark.timeout(300)
async def test_a_restart_in_the_middle_loses_no_thread(store_url: str) -> None:
    session = make_session(60, 60, "many_users", 500)
    shape = Shape(dialect=THREADS, max_tokens=2_000, stream=True)
    toy = ToyUpstream(window=16_000)
    async with toy:
        settings = make_settings(toy, store=store_url)
        run, since = None, None
        for start in (0, 7, 20, 40):
            async with running_gateway(settings) as gateway:
                stops = {0: 7, 7: 20, 20: 40, 40: None}
                pace = Pace(first=start, last=stops[start], since=since)
                run = await run_session(session, gateway.base_url, toy, shape, pace)
                await gateway.settle()
            assert run.failed == [] and run.replays == () and run.refusals == []
            since = run.since
    assert run is not None and "pivot" in "".join(filter(None, run.plans))
    said = [fact.token for fact in session.facts if fact.kind != "tool" and fact.turn < 59]
    everything = Run(answers=run.answers, seen=tuple(toy.requests))
    assert everything.facts_lost(said) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_unknown_thread_passes_until_it_is_full_and_is_then_sent_in_full(stream: bool) -> None:
    """Another gateway has relayed its beginning."""
    session = make_session(60, 60, "many_users", 500)
    shape = Shape(dialect=THREADS, max_tokens=2_000, stream=stream)
    toy = ToyUpstream(window=16_000)
    async with toy:
        async with running_gateway(make_settings(toy)) as gateway:
            first = await run_session(session, gateway.base_url, toy, shape, Pace(last=5))
        async with running_gateway(make_settings(toy)) as gateway:
            run = await run_session(session, gateway.base_url, toy, shape, Pace(first=5, since=first.since))
    assert first.failed == [] and run.failed == []
    # Nothing is cut: what passes is what came, and upstream had nothing to refuse.
    assert run.replays == ("thread_not_found",) and run.refusals == []
    untouched = [seen for seen in run.outgoing if read_thread(seen).get("type") == "continue"]
    assert len(untouched) >= 5
    assert len(run.summaries) <= summary_budget(session, TokenCounter(1.0), 16_000)
    whole = Messages()
    for turn, seen in enumerate(run.outgoing[:5], start=5):
        assert whole.items(seen.whole) == whole.items(session.envelope(turn, Shape(dialect=whole)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_overflow_in_an_unknown_thread_asks_for_all_of_it(stream: bool) -> None:
    session = make_session(40, 40, "many_users", 500)
    shape = Shape(dialect=THREADS, max_tokens=2_000, stream=stream)
    toy = ToyUpstream(window=16_000)
    async with toy:
        async with running_gateway(make_settings(toy)) as gateway:
            first = await run_session(session, gateway.base_url, toy, shape, Pace(last=8))
        since = first.since
        assert since is not None
        # No response has told the size yet, and this one does not fit.
        body = session.request(25, shape, since)
        async with running_gateway(make_settings(toy)) as gateway, open_client() as client:
            answer = await ask(client, f"{gateway.base_url}/messages", body)
            assert (answer.status, find_thread_error(answer.body)) == (404, "thread_not_found")
            assert toy.chats[-1].body == body
            whole = await ask(client, f"{gateway.base_url}/messages", session.request(25, shape))
    assert whole.is_whole


@pytest.mark.timeout(300)
async def test_tenants_do_not_continue_each_others_threads() -> None:
    """With a key of the upstream's own, all of them are one account there."""
    session = make_session(3, 3, "many_users", 300)
    shape = Shape(dialect=THREADS, max_tokens=2_000)
    toy = ToyUpstream(window=64_000)
    async with toy:
        settings = make_settings(toy).replace("discover: false", 'discover: false, api_key: "sk-own"')
        async with running_gateway(settings) as gateway:
            one = await run_session(session, gateway.base_url, toy, shape, Pace(key="sk-one", last=1))
            other = Pace(key="sk-two", first=1, since=one.since)
            run = await run_session(session, gateway.base_url, toy, shape, other)
            again = await run_session(
                session, gateway.base_url, toy, shape, Pace(key="sk-one", first=1, since=one.since)
            )
    assert run.failed == [] and run.replays == ("thread_not_found",)
    assert again.failed == [] and again.replays == ()
    created = [seen for seen in run.outgoing if read_thread(seen).get("type") == "create"]
    assert created == [run.outgoing[0]]


@pytest.mark.timeout(300)
async def test_a_thread_under_each_key_is_known_where_callers_bring_their_own() -> None:
    session = make_session(30, 30, "many_users", 500)
    shape = Shape(dialect=THREADS, max_tokens=2_000)
    toy = ToyUpstream(window=16_000)
    async with toy, running_gateway(make_settings(toy)) as gateway:
        runs = [
            await run_session(session, gateway.base_url, toy, shape, Pace(key=key))
            for key in ("sk-a", "sk-b")
        ]
        assert [run.failed for run in runs] == [[], []]
        # What one key knows is nothing to the other.
        assert len(runs[0].summaries) == len(runs[1].summaries) >= 1
        body = session.request(29, shape, Since(turn=28, response_id=runs[0].answers[-1].response_id or ""))
        async with open_client("sk-b") as client:
            await ask(client, f"{gateway.base_url}/messages", body)
        assert toy.chats[-1].body == body


def open_client(key: str = "sk-toy") -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"Content-Type": "application/json", **THREADS.headers(key)})
