"""Summaries that ride, over sockets and in every wire format: the last body leaves with one more message."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.house import make_settings
from tests.toy.messages import MESSAGES, Messages
from tests.toy.product import Product, serve
from tests.toy.responses import RESPONSES
from tests.toy.running import EAGER, Run, run_session
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 32_000
SESSION = make_session(56, 3, "one_user", 900)
# What every request of a model with this price reads from a cache costs a tenth.
CACHED = "{input: 1, cached: 0.1, output: 8}"
NO_PRUNING = "policies:\n  default: {economy: 0, compaction: {prune: false}}\n"
RECALLING = "policies:\n  default: {economy: 0, recall: tool, compaction: {prune: false}}\n"
NEVER = "policies:\n  default: {economy: 0, compaction: {prune: false}, summary: {ride: never}}\n"
# Without marks that move, which only this format has: then bytes may be compared.
DIALECTS: Sequence[Dialect] = (CHAT, RESPONSES, Messages(marks=False))
# Fields beside the prompt.
BESIDE = {"tool_choice", "max_tokens", "max_output_tokens", "store"}


def stream(dialect: Dialect) -> Shape:
    return Shape(dialect=dialect, max_tokens=1_000, stream=True)


async def play(
    gateway: Product, toy: ToyUpstream, shape: Shape, first: int = 0, last: int | None = None
) -> Run:
    pace = replace(EAGER, first=first, last=last)
    run = await run_session(SESSION, gateway.base_url, toy, shape, pace)
    await gateway.at_rest()
    assert not run.failed and not run.refusals
    return run


def items_of(seen: Seen) -> list[object]:
    items = seen.request["messages" if "messages" in seen.request else "input"]
    assert isinstance(items, list)
    return items


def is_ride(seen: Seen) -> bool:
    return seen.is_summary and bool(seen.request.get("tools"))


def find_last_end(seen: Seen) -> int:
    """Where the last item of a body ends."""
    last = json.dumps(items_of(seen)[-1], ensure_ascii=False, separators=(",", ":")).encode()
    return seen.body.rindex(last) + len(last)


CASES = {
    **{dialect.path: (dialect, NO_PRUNING) for dialect in DIALECTS},
    "pruned": (CHAT, "policies: {default: {economy: 0}}\n"),
    **{f"{dialect.path} with the gateway's tool": (dialect, RECALLING) for dialect in DIALECTS},
}


@pytest.mark.parametrize(("dialect", "policy"), CASES.values(), ids=CASES.keys())
async def test_a_summary_is_the_last_body_and_one_message(dialect: Dialect, policy: str) -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, price=CACHED, more=policy)) as gateway,
    ):
        toy.cached_share = lambda _: 0.95
        run = await play(gateway, toy, stream(dialect))
        await gateway.at_rest()
    assert len(toy.summaries) >= (2 if "prune" in policy else 1)
    assert all(is_ride(seen) for seen in toy.summaries)
    for rider in toy.summaries:
        # The client may have gone on meanwhile.
        (before,) = [seen for seen in run.outgoing if items_of(seen) == items_of(rider)[:-1]]
        end = find_last_end(before)
        assert rider.body[:end] == before.body[:end]
        assert {name for name in rider.request if rider.request[name] != before.request.get(name)} <= {
            "messages",
            "input",
            *BESIDE,
        }


async def test_a_cache_that_never_hits_is_ridden_once() -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, price=CACHED, more=NO_PRUNING)) as gateway,
    ):
        toy.cached_share = lambda _: 0.0
        await play(gateway, toy, stream(CHAT))
    assert [is_ride(seen) for seen in toy.summaries] == [True, *[False] * (len(toy.summaries) - 1)]
    assert len(toy.summaries) > 1


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.path)
async def test_a_request_that_waits_for_its_summary_lends_its_own_body(dialect: Dialect) -> None:
    """It begins with what was sent last, and the request after it with neither."""
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, price=CACHED, more=NO_PRUNING)) as gateway,
    ):
        before = (await play(gateway, toy, stream(dialect), last=18)).outgoing[-1]
        assert not toy.summaries
        await play(gateway, toy, stream(dialect), first=26, last=27)
    (rider,) = toy.summaries
    end = find_last_end(before)
    assert rider.body[:end] == before.body[:end]
    sent = SESSION.envelope(26, stream(dialect))
    assert items_of(rider)[:-1] == sent["messages" if "messages" in sent else "input"]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.path)
async def test_a_client_that_does_not_stream_gets_a_summary_that_is_not_streamed(dialect: Dialect) -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, price=CACHED, more=NO_PRUNING)) as gateway,
    ):
        await play(gateway, toy, Shape(dialect=dialect, max_tokens=1_000), last=30)
    (rider,) = toy.summaries
    assert is_ride(rider) and not rider.request.get("stream")
    assert dict(rider.headers)["Accept"] == "text/event-stream, application/json"


async def test_cache_marks_and_tools_stay_where_they_are() -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, more=NO_PRUNING)) as gateway,
    ):
        run = await play(gateway, toy, stream(MESSAGES))
        await gateway.at_rest()
    # Without a price the cached tokens of the usage tell that there is a cache.
    assert toy.summaries
    for rider in toy.summaries:
        (before,) = [seen for seen in run.outgoing if items_of(seen) == items_of(rider)[:-1]]
        assert rider.request["tools"] == before.request["tools"]
        assert "tool_choice" not in rider.request


@pytest.mark.parametrize(("price", "more"), [("", NO_PRUNING), (CACHED, NEVER)])
async def test_without_a_cache_or_by_the_policy_the_history_is_quoted(price: str, more: str) -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        serve(make_settings(toy, price=price, more=more)) as gateway,
    ):
        await play(gateway, toy, stream(CHAT), last=30)
        await gateway.at_rest()
    assert toy.summaries and not any(map(is_ride, toy.summaries))


async def test_a_cache_stays_warm_over_a_restart(tmp_path: Path) -> None:
    store = f"disk:{tmp_path}/state"
    async with ToyUpstream(window=WINDOW) as toy:
        settings = make_settings(toy, store=store, price=CACHED, more=NO_PRUNING)
        async with serve(settings) as gateway:
            await play(gateway, toy, stream(CHAT), last=18)
        assert not toy.summaries
        async with serve(settings) as gateway:
            await play(gateway, toy, stream(CHAT), first=26, last=27)
    assert [is_ride(seen) for seen in toy.summaries] == [True]
