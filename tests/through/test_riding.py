"""Summaries that ride, over sockets and in every wire format: the last body, with a question at its end."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.house import House, make_settings
from tests.toy.messages import MESSAGES, Messages
from tests.toy.product import serve
from tests.toy.responses import RESPONSES
from tests.toy.running import Run
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 32_000
SESSION = make_session(56, 3, "one_user", 900)
# What every request of a model with this price reads from a cache costs a tenth.
CACHED = "{input: 1, cached: 0.1, output: 8}"
NO_PRUNING = "economy: 0, compaction: {prune: false}"
NEVER = f"{NO_PRUNING}, summary: {{ride: never}}"
# Without marks that move, which only this format has: then bytes may be compared.
DIALECTS: Sequence[Dialect] = (CHAT, RESPONSES, Messages(marks=False))
# What may differ: the prompt has one more message, and these are beside it.
DIFFERENT = {"messages", "input", "tool_choice", "max_tokens", "max_output_tokens", "store"}
by_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.path)


@asynccontextmanager
async def open_house(
    policy: str = NO_PRUNING, price: str = CACHED, output_tokens: int = 0
) -> AsyncIterator[House]:
    more = f"policies: {{default: {{{policy}}}}}\n"
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, price=price, more=more, output_tokens=output_tokens)) as product,
    ):
        yield House(toy, product, "sk-toy")


def stream(dialect: Dialect) -> Shape:
    return Shape(dialect=dialect, max_tokens=1_000, stream=True)


async def play(house: House, shape: Shape, first: int = 0, last: int | None = None) -> Run:
    run = await house.play(SESSION, shape, first, last)
    await house.at_rest()
    assert not run.failed and not run.refusals
    return run


def items_of(seen: Seen) -> list[object]:
    items = seen.request["messages" if "messages" in seen.request else "input"]
    assert isinstance(items, list)
    return items


def items_before_question(rider: Seen) -> list[object]:
    """The question is a message of its own, or the last part of a user's message."""
    *before, last = items_of(rider)
    assert isinstance(last, dict) and last["role"] == "user"
    content = last["content"]
    is_joined = isinstance(content, list) and len(content) > 1
    return [*before, last | {"content": content[:-1]}] if is_joined else before


def is_ride(seen: Seen) -> bool:
    return seen.is_summary and bool(seen.request.get("tools"))


def find_last_end(seen: Seen) -> int:
    """Where the last item of a body ends."""
    last = json.dumps(items_of(seen)[-1], ensure_ascii=False, separators=(",", ":")).encode()
    return seen.body.rindex(last) + len(last)


@by_dialect
async def test_a_model_that_writes_little_is_ridden_for_as_much_as_it_writes(dialect: Dialect) -> None:
    """The usual summary of this window is longer than its longest reply."""
    async with open_house(output_tokens=2_048) as house:
        house.toy.cached_share = lambda _: 0.95
        await play(house, stream(dialect))
    riders = house.toy.summaries
    assert riders and all(is_ride(seen) for seen in riders)
    for rider in riders:
        limits = [
            rider.request[name] for name in ("max_tokens", "max_output_tokens") if name in rider.request
        ]
        assert limits == [2_048]


CASES = {
    **{dialect.path: (dialect, NO_PRUNING) for dialect in DIALECTS},
    "pruned": (CHAT, "economy: 0"),
}


@pytest.mark.parametrize(("dialect", "policy"), CASES.values(), ids=CASES.keys())
async def test_a_summary_is_the_last_body_and_a_question(dialect: Dialect, policy: str) -> None:
    async with open_house(policy) as house:
        house.toy.cached_share = lambda _: 0.95
        run = await play(house, stream(dialect))
    riders = house.toy.summaries
    assert len(riders) >= (2 if "prune" in policy else 1)
    assert all(is_ride(seen) for seen in riders)
    for rider in riders:
        # The client may have gone on meanwhile.
        (before,) = [seen for seen in run.outgoing if items_of(seen) == items_before_question(rider)]
        end = find_last_end(before) - len("]}")
        assert rider.body[:end] == before.body[:end]
        roles = [item.get("role") for item in items_of(rider)[-2:] if isinstance(item, dict)]
        assert roles != ["user", "user"]
        changed = {name for name in rider.request if rider.request[name] != before.request.get(name)}
        assert changed <= DIFFERENT


async def test_a_cache_that_never_hits_is_ridden_once() -> None:
    async with open_house() as house:
        house.toy.cached_share = lambda _: 0.0
        await play(house, stream(CHAT))
    rides = list(map(is_ride, house.toy.summaries))
    assert rides == [True, *[False] * (len(rides) - 1)] and len(rides) > 1


@by_dialect
async def test_a_request_that_waits_for_its_summary_lends_its_own_body(dialect: Dialect) -> None:
    """It begins with what was sent last, and the request after it with neither."""
    async with open_house() as house:
        before = (await play(house, stream(dialect), last=18)).outgoing[-1]
        assert not house.toy.summaries
        await play(house, stream(dialect), first=26, last=27)
    (rider,) = house.toy.summaries
    end = find_last_end(before)
    assert rider.body[:end] == before.body[:end]
    sent = SESSION.envelope(26, stream(dialect))
    assert items_before_question(rider) == sent["messages" if "messages" in sent else "input"]


@by_dialect
async def test_a_client_that_does_not_stream_gets_a_summary_that_is_not_streamed(dialect: Dialect) -> None:
    async with open_house() as house:
        await play(house, Shape(dialect=dialect, max_tokens=1_000), last=30)
    (rider,) = house.toy.summaries
    assert is_ride(rider) and not rider.request.get("stream")
    assert dict(rider.headers)["Accept"] == "text/event-stream, application/json"


async def test_cache_marks_and_tools_stay_where_they_are() -> None:
    """Without a price the cached tokens of the usage tell that there is a cache."""
    async with open_house(price="") as house:
        run = await play(house, stream(MESSAGES))
    assert house.toy.summaries
    for rider in house.toy.summaries:
        (before,) = [seen for seen in run.outgoing if items_of(seen) == items_before_question(rider)]
        assert rider.request["tools"] == before.request["tools"]
        assert "tool_choice" not in rider.request


@pytest.mark.parametrize(("price", "policy"), [("", NO_PRUNING), (CACHED, NEVER)])
async def test_without_a_cache_or_by_the_policy_the_history_is_quoted(price: str, policy: str) -> None:
    async with open_house(policy, price) as house:
        await play(house, stream(CHAT), last=30)
    assert house.toy.summaries and not any(map(is_ride, house.toy.summaries))


async def test_a_cache_stays_warm_over_a_restart(store_url: str) -> None:
    more = f"policies: {{default: {{{NO_PRUNING}}}}}\n"
    async with ToyUpstream(window=WINDOW) as toy:
        for first, last in ((0, 18), (26, 27)):
            assert not toy.summaries
            async with serve(make_settings(toy, store=store_url, price=CACHED, more=more)) as product:
                await play(House(toy, product, "sk-toy"), stream(CHAT), first, last)
    assert [is_ride(seen) for seen in toy.summaries] == [True]
