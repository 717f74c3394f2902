"""What a response says of its request: conversation, plan, sizes, a shorter reply, a warning, its cost."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from tests.toy.agent import Shape, make_session
from tests.toy.checks import check_request
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.house import ADMIN, House
from tests.toy.product import serve
from tests.toy.running import Answer
from tests.toy.upstream import ToyUpstream
from tests.toy.wire import PATHS, WHOLE, Wire, make_chat, opening_wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 16_000
FREE = "price: {input: 0, output: 0}"
SETTINGS = f"""\
store: "memory:"
{ADMIN}upstreams:
  default: {{base_url: "%s", discover: false}}
models:
  - {{match: "toy-plain", context: {WINDOW}, {FREE}, policy: plain}}
  - {{match: "toy-prune", context: {WINDOW}, {FREE}, policy: pruning}}
  - {{match: "toy-*", context: {WINDOW}, {FREE}}}
policies:
  plain: {{compaction: {{auto: false}}}}
  pruning: {{preset: prune_only}}
"""
FORMATS = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
TOKENS = re.compile(r"received=(\d+), sent=(\d+)")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_house() -> AsyncIterator[House]:
    """Its models have the policies that are told apart here."""
    async with ToyUpstream(window=WINDOW) as toy, serve(SETTINGS % toy.base_url) as product:
        yield House(toy, product, "sk-nobody")


def read_tokens(answer: Answer) -> tuple[int, int]:
    found = TOKENS.fullmatch(answer.header("x-gateway-tokens") or "")
    assert found is not None
    return int(found[1]), int(found[2])


def list_own(answer: Answer) -> set[str]:
    return {name.lower() for name, _ in answer.headers if name.lower().startswith("x-gateway")}


@FORMATS
@pytest.mark.parametrize("model", ["toy-plain", "toy-prune", "toy-model"])
async def test_the_plan_says_what_was_done(house: House, model: str, dialect: Dialect) -> None:
    """And the sizes are those that the upstream counts."""
    house.toy.window = WINDOW if model == "toy-model" else 10 * WINDOW
    session = replace(make_session(26, 9, "one_user", 900), model=model)
    shape = Shape(dialect=dialect, max_tokens=1_000)
    run = await house.play(session, shape)
    assert run.failed == [] and len({answer.header("x-gateway-conversation") for answer in run.answers}) == 1
    for turn, (answer, seen) in enumerate(zip(run.answers, run.outgoing, strict=True)):
        sent = check_request(session, shape, turn, seen)
        parts = ["pivot"] * bool(sent.inserted) + ["pruned"] * bool(sent.shortened)
        assert answer.header("x-gateway-plan") == ("+".join(parts) or "passthrough")
        if not parts:
            assert seen.body == session.request(turn, shape)
        counted = dialect.count(house.toy.counter, session.envelope(turn, shape))
        received, told = read_tokens(answer)
        # The first one is taken for larger than it seems. Later only what is new is estimated.
        assert seen.prompt_tokens * 0.9 < told < seen.prompt_tokens * (1.2 if turn else 1.4) + 100
        assert counted * 0.85 < received < counted * (1.2 if turn else 1.4) + 100
        assert received == told or parts
    plans = set(run.plans)
    wanted = {"toy-plain": {"passthrough"}, "toy-prune": {"passthrough", "pruned"}}
    assert plans == wanted[model] if model in wanted else "pivot" in {str(plan)[:5] for plan in plans}
    # Too large for its window, and nothing may be done about it.
    warnings = [answer.header("x-gateway-warning") for answer in run.answers]
    assert (warnings[0] is None) and (warnings[-1] is not None) == (model == "toy-plain")


# Tokens of the prompt, those requested of the reply, and whether fewer are requested instead. A prompt that
# leaves less than 1,024 tokens is never helped by a shorter reply.
CLAMPS = [
    (1_000, 4_000, False),
    (11_000, 4_000, False),
    (11_000, 8_000, True),
    (15_500, 8_000, True),
    (20_000, 8_000, True),
    (16_300, 8_000, True),
    (16_300, 1_025, True),
    (16_300, 1_024, False),
    (16_300, 600, False),
    (16_300, None, False),
]


def make_request(dialect: Dialect, tokens: int, output: int | None, *more: str) -> dict[str, Any]:
    """more: what assistant and user said then."""
    said = ["word " * tokens, *more]
    roles = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]
    limit: dict[str, Any] = {} if output is None else {dialect.output_key: output}
    name = "input" if dialect.path == "/responses" else "messages"
    return {"model": "toy-plain", name: roles, **limit}


@FORMATS
async def test_a_reply_is_shortened_to_what_fits_and_never_made_longer(
    house: House, dialect: Dialect
) -> None:
    house.toy.window = 10 * WINDOW
    headers = dialect.headers(house.key)
    for tokens, output, is_shortened in CLAMPS:
        if output is None and dialect.path == "/messages":
            continue
        # Its answer says how large it is.
        await house.post(dialect.path, make_request(dialect, tokens, 500), **headers)
        request = make_request(dialect, tokens, output, "Understood.", f"Go on with {output}.")
        answer = await house.post(dialect.path, request, **headers)
        assert answer.status == 200, answer.body
        seen = house.toy.chats[-1]
        sent, told = seen.request, answer.header("x-gateway-max-tokens")
        if not is_shortened:
            assert (sent, told) == (request, None)
            continue
        number = sent[dialect.output_key]
        assert isinstance(number, int) and told == str(number)
        assert sent == request | {dialect.output_key: number}
        left = WINDOW - seen.prompt_tokens
        assert number == 1_024 if left < 1_024 else left - 600 < number <= left - 64


async def test_the_other_name_of_the_limit_in_chat_is_shortened_too(house: House) -> None:
    house.toy.window = 10 * WINDOW
    request = make_request(DIALECTS[0], 14_000, None)
    answer = await house.post("/chat/completions", request | {"max_completion_tokens": 8_000})
    number = house.toy.chats[-1].request["max_completion_tokens"]
    assert answer.header("x-gateway-max-tokens") == str(number) == "1024"


async def test_what_a_conversation_cost_is_told_to_those_who_ask(house: House) -> None:
    session, shape = make_session(6, 3), Shape(max_tokens=500)
    asked: dict[str, Any] = {"x-gateway-economics": "1"}
    first = await house.play(session, shape, 0, 1, **asked)
    assert first.answers[0].header("x-gateway-economics") == "requests=0"
    await house.at_rest()
    run = await house.play(session, shape, 1, 2, **asked)
    told = run.answers[0].header("x-gateway-economics") or ""
    assert told.startswith("requests=1, ") and f"prompt={first.outgoing[0].prompt_tokens}, " in told
    assert not [name for name, _ in run.seen[-1].headers if name.lower().startswith("x-gateway")]
    # Unasked, and of another tenant's conversation with the same messages, nothing is told.
    assert (await house.play(session, shape, 2, 3)).answers[0].header("x-gateway-economics") is None
    stranger = replace(house, key=f"{house.key}-2")
    strange = await stranger.play(session, shape, 1, 2, **asked)
    assert strange.answers[0].header("x-gateway-economics") == "requests=0"


@FORMATS
async def test_a_bypass_is_a_pure_relay(house: House, dialect: Dialect) -> None:
    """Whatever its size: nothing is read, changed, recorded or added."""
    session = make_session(30, 9, "one_user", 900)
    shape = Shape(dialect=dialect, max_tokens=1_000, stream=True)
    house.toy.window = 10 * WINDOW
    bypass: dict[str, Any] = {"x-gateway-bypass": "1"}
    run = await house.play(session, shape, 27, 30, **bypass)
    assert run.failed == [] and run.summaries == []
    assert [seen.body for seen in run.outgoing] == [session.request(turn, shape) for turn in (27, 28, 29)]
    assert set().union(*map(list_own, run.answers)) == set()
    names = {name.lower() for seen in run.seen for name, _ in seen.headers}
    assert not any(name.startswith("x-gateway") for name in names)
    await house.at_rest()
    _, listed = await house.admin("/conversations")
    assert run.conversation == "" and not [each for each in listed["conversations"] if each["requests"] > 26]


async def test_a_session_is_a_label_that_operators_see_and_nobody_else(house: House) -> None:
    label: dict[str, Any] = {"x-gateway-session": "my session"}
    run = await house.play(make_session(3, 3), Shape(max_tokens=500), **label)
    assert run.failed == [] and len(set(run.plans)) == 1
    assert not [name for seen in run.seen for name, _ in seen.headers if name.lower().startswith("x-gateway")]
    await house.at_rest()
    status, shown = await house.admin(f"/conversations/{run.conversation}")
    assert (status, shown["session"]) == (200, "my session")


async def test_the_first_headers_of_a_small_request(wire: Wire) -> None:
    got = await wire.chat(make_chat())
    assert got.own("plan") == "passthrough"
    assert TOKENS.fullmatch(got.own("tokens") or "")
    assert re.fullmatch(r"[0-9a-f]{16}", got.own("conversation") or "")
    assert (got.own("max-tokens"), got.own("warning"), got.own("economics")) == (None, None, None)
    relayed = await wire.ask(WHOLE_ELSEWHERE)
    assert not any(name.lower().startswith(b"x-gateway") for name, _ in relayed.head.headers)


WHOLE_ELSEWHERE = (
    f"POST {PATHS[1]} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(WHOLE)}\r\n\r\n".encode() + WHOLE
)


async def test_the_gateways_response_headers_can_be_switched_off() -> None:
    more = "response_headers: false\n"
    async with opening_wire(more=more) as wire:
        got = await wire.chat(make_chat())
        assert (got.status, json.loads(got.body)) == (200, {})
        assert not any(name.lower().startswith(b"x-gateway") for name, _ in got.head.headers)
