"""The window of a model: discovered, learned from refusals, small, or filled by what nothing can replace."""

import json
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from tests.toy.agent import Session, Shape, make_session, with_thinking
from tests.toy.chat import CHAT
from tests.toy.checks import Promise, check_conversation
from tests.toy.counting import TokenCounter
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.economics import measure
from tests.toy.house import House, make_settings
from tests.toy.material import make_prose
from tests.toy.messages import MESSAGES, Messages
from tests.toy.product import Product, serve
from tests.toy.responses import RESPONSES, Responses
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 16_000
SHAPE = Shape(max_tokens=1_000)
LIST = ("GET", "/v1/models")


def listing(model: str, **fields: object) -> RawAnswer:
    entry = {"id": model, "object": "model", "owned_by": "vllm", **fields}
    return RawAnswer(pieces=(json.dumps({"object": "list", "data": [entry]}).encode(),))


def without_limits(toy: ToyUpstream, keys: str = "") -> str:
    return f'store: "memory:"\nupstreams: {{default: {{base_url: "{toy.base_url}"{keys}}}}}\n'


def is_list_request(seen: Seen) -> bool:
    """A client's: the gateway's own check at the start has no key."""
    return seen.method == "GET" and "authorization" in {name.lower() for name, _ in seen.headers}


def has_listed(toy: ToyUpstream) -> bool:
    return any(is_list_request(seen) and seen.finished for seen in toy.requests)


async def play(product: Product, toy: ToyUpstream, session: Session, shape: Shape, **pace: int) -> Run:
    return await run_session(session, product.base_url, toy, shape, Pace(**pace))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_model_len": WINDOW},
        {"context_length": WINDOW},
        {"context_window": WINDOW},
        {"max_context_length": WINDOW},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_window_from_the_model_list_is_respected_from_the_second_request_on(
    fields: Mapping[str, int],
) -> None:
    session = make_session(40, 40, "one_user", 500, facts="all")
    async with ToyUpstream(window=WINDOW) as toy, serve(without_limits(toy)) as product:
        toy.raw_answers[LIST] = listing(session.model, **fields)
        first = await play(product, toy, session, SHAPE, last=1)
        await wait_until(lambda: has_listed(toy))
        await product.at_rest()
        rest = await play(product, toy, session, SHAPE, first=1)
    assert first.failed == []
    check_conversation(session, SHAPE, rest, 1, Promise(window=WINDOW))
    assert rest.summaries
    assert sum(is_list_request(seen) for seen in toy.requests) == 1


async def test_a_configured_window_wins_over_the_list() -> None:
    session = make_session(40, 40, "one_user", 500)
    more = f'models:\n  - {{match: "toy-*", context: {WINDOW}, price: {{input: 0, output: 0}}}}\n'
    async with ToyUpstream(window=WINDOW) as toy, serve(without_limits(toy) + more) as product:
        toy.raw_answers[LIST] = listing(session.model, max_model_len=200_000)
        run = await play(product, toy, session, SHAPE)
    check_conversation(session, SHAPE, run, promise=Promise(window=WINDOW))


async def test_without_discovery_the_window_stays_unknown_and_the_upstream_refuses() -> None:
    """The counterpart: without the list this session does not fit."""
    session = make_session(40, 40, "one_user", 500)
    settings = ", discover: false"
    async with ToyUpstream(window=WINDOW) as toy, serve(without_limits(toy, settings)) as product:
        toy.raw_answers[LIST] = listing(session.model, max_model_len=WINDOW)
        run = await play(product, toy, session, SHAPE)
    assert run.failed == [] and run.refusals
    assert not has_listed(toy)


async def test_a_model_list_that_never_arrives_delays_no_request() -> None:
    session = make_session(3, 3, "one_user", 500)
    async with ToyUpstream(window=WINDOW) as toy, serve(without_limits(toy)) as product:
        toy.raw_answers[LIST] = RawAnswer(delivery=Delivery(never=True))
        run = await play(product, toy, session, SHAPE)
        await wait_until(lambda: any(is_list_request(seen) for seen in toy.requests))
    assert run.failed == []


LEARNING: Mapping[str, tuple[Shape, bool]] = {
    "chat": (Shape(max_tokens=3_000), False),
    "chat-refused-in-stream": (Shape(max_tokens=3_000, stream=True), True),
    "messages": (Shape(dialect=Messages(), max_tokens=3_000), False),
    "messages-streamed": (Shape(dialect=Messages(marks=False), max_tokens=3_000, stream=True), False),
    "messages-refused-in-stream": (Shape(dialect=Messages(), max_tokens=3_000, stream=True), True),
    "responses": (Shape(dialect=Responses(), max_tokens=1_000, stream=True), False),
    "responses-previous": (
        Shape(dialect=Responses(history="previous"), max_tokens=1_000, stream=True),
        False,
    ),
}


@pytest.mark.parametrize("name", LEARNING)
async def test_an_unknown_window_is_learned_from_its_refusals(name: str) -> None:
    """One is enough where it has numbers in it; those of Responses have none."""
    shape, refuses_in_stream = LEARNING[name]
    session = make_session(40, 40, "one_user", 500)
    session = with_thinking(session) if name.startswith("messages") else session
    toy = ToyUpstream(window=WINDOW, bias=1.3)
    toy.refuses_in_stream = refuses_in_stream
    async with toy, serve(without_limits(toy, ", discover: false")) as product:
        run = await run_session(session, product.base_url, toy, shape)
    assert run.failed == []
    assert 1 <= len(run.refusals) <= (6 if name.startswith("responses") else 1)
    assert run.summaries
    for tries in run.sent:
        sizes = [seen.prompt_tokens for seen in tries]
        assert len(tries) <= 3 and sizes == sorted(set(sizes), reverse=True), "a retry is not smaller"


async def test_what_was_learned_holds_for_that_model_alone_and_over_a_restart(store_url: str) -> None:
    session = make_session(40, 40, "one_user", 500)
    other = replace(session, model="toy-other")
    toy = ToyUpstream(window=WINDOW, bias=1.3)
    async with toy:
        toy.windows["toy-other"] = 64_000
        settings = without_limits(toy, ", discover: false").replace('"memory:"', f'"{store_url}"')
        async with serve(settings) as product:
            run = await run_session(session, product.base_url, toy, SHAPE, Pace(last=36))
            assert len(run.refusals) == 1
            free = await run_session(
                other, product.base_url, toy, SHAPE, Pace(first=30, last=31, key="sk-other")
            )
            assert free.plans == ["passthrough"]
            await product.at_rest()
        async with serve(settings) as product:
            again = await run_session(session, product.base_url, toy, SHAPE, Pace(first=36))
    assert again.failed == [] and again.refusals == []


# A coding agent whose system prompt and tools take a third of a small window.

_REQUESTS = 60


@dataclass(frozen=True)
class Small:
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


async def play_small(case: Small, dialect: Dialect = CHAT, summary_tokens: int | None = None) -> Run:
    shape = Shape(dialect=dialect, max_tokens=2_000, stream=True)
    toy = ToyUpstream(window=case.window, bias=1.0)
    toy.summary_tokens = summary_tokens
    async with toy, serve(make_settings(toy)) as product:
        run = await run_session(case.session, product.base_url, toy, shape)
    assert (run.failed, run.refusals) == ([], [])
    return run


def count_compactions(run: Run) -> int:
    """Summaries, and digests in their place."""
    return len(run.summaries) + run.plans.count("digest")


# Turns of 5 % of the window. Without a rule for turns there were 15 and 12 summaries.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [Small(24_000, 8_000, 1_200)], ids=str)
async def test_six_turns_fit_between_two_compactions(case: Small, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = await play_small(case)
    assert 1 <= count_compactions(run) <= _REQUESTS / 6 + 1
    assert [answer.header("x-gateway-warning") for answer in run.answers] == [None] * _REQUESTS
    assert "is small for this client" not in caplog.text


# As Codex and Qwen Code: 8 % of the window. Without the rule there were 30 and 27 summaries.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [Small(24_000, 8_000, 1_920)], ids=str)
async def test_a_window_that_is_too_small_is_named_with_one_that_would_do(
    case: Small, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run = await play_small(case)
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
        run = await play_small(Small(24_000, 8_000, 1_920), dialect, summary_tokens=1_500)
    assert "digest" not in run.plans and "compaction failed" not in caplog.text
    assert 1 <= len(run.summaries) <= _REQUESTS / 4 + 1


_SYSTEM = "Always follow the rules of this project, all of them. " * 2_000


async def test_a_system_prompt_larger_than_the_window_is_named_in_the_header_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where the gateway cannot help it says why, and asks no model."""
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": "Hello"}]
    body = {"model": "toy-model", "messages": messages}
    async with ToyUpstream(window=16_384) as toy, serve(make_settings(toy)) as product:
        house = House(toy, product, "sk-toy")
        with caplog.at_level(logging.WARNING, "gateway.limits"):
            answers = [await house.post("/chat/completions", body) for _ in range(3)]
    for answer in answers:
        warning = answer.header("x-gateway-warning") or ""
        assert warning.startswith("system prompt and tools take ")
        assert warning.endswith(" of 16.4k tokens: there is nothing to replace")
    logged = [each.getMessage() for each in caplog.records if "nothing to replace" in each.getMessage()]
    assert len(logged) == 1 and toy.summaries == []
