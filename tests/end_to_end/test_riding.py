"""Summaries that ride, over sockets and in every wire format: the last body leaves with one more message."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.messages import MESSAGES, Messages
from tests.toy.responses import RESPONSES
from tests.toy.running import EAGER, Run, run_session
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 32_000
SESSION = make_session(56, 3, "one_user", 900)
# What every request of a model with this price reads from a cache costs a tenth.
CACHED = "  - {match: 'toy-*', price: {input: 1, cached: 0.1, output: 8}}\n"
NO_PRUNING = "policies:\n  default: {compaction: {prune: false}}\n"
NEVER = "policies:\n  default: {compaction: {prune: false}, summary: {ride: never}}\n"
# Without marks that move, which only this format has: then bytes may be compared.
DIALECTS: Sequence[Dialect] = (CHAT, RESPONSES, Messages(marks=False))
# Fields beside the prompt.
BESIDE = {"tool_choice", "max_tokens", "max_output_tokens", "store"}


async def play(
    gateway: RunningGateway, toy: ToyUpstream, dialect: Dialect, first: int = 0, last: int | None = None
) -> Run:
    shape = Shape(dialect=dialect, max_tokens=1_000, stream=True)
    pace = replace(EAGER, first=first, last=last)
    run = await run_session(SESSION, gateway.base_url, toy, shape, pace)
    await gateway.settle()
    assert not run.failed and not run.refusals
    return run


def items_of(seen: Seen) -> list[object]:
    items = seen.request["messages" if "messages" in seen.request else "input"]
    assert isinstance(items, list)
    return items


def find_last_end(seen: Seen) -> int:
    """Where the last item of a body ends."""
    last = json.dumps(items_of(seen)[-1], ensure_ascii=False, separators=(",", ":")).encode()
    return seen.body.rindex(last) + len(last)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.path)
async def test_a_summary_is_the_last_body_and_one_message(dialect: Dialect) -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        running_gateway(make_settings(toy, more=CACHED + NO_PRUNING)) as gateway,
    ):
        run = await play(gateway, toy, dialect)
        await gateway.settle()
    assert len(toy.summaries) >= 2
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


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.path)
async def test_a_request_that_waits_for_its_summary_lends_its_own_body(dialect: Dialect) -> None:
    """It begins with what was sent last, and the request after it with neither."""
    async with (
        ToyUpstream(window=WINDOW) as toy,
        running_gateway(make_settings(toy, more=CACHED + NO_PRUNING)) as gateway,
    ):
        before = (await play(gateway, toy, dialect, last=18)).outgoing[-1]
        assert not toy.summaries
        await play(gateway, toy, dialect, first=26, last=27)
    (rider,) = toy.summaries
    end = find_last_end(before)
    assert rider.body[:end] == before.body[:end]
    shape = Shape(dialect=dialect, max_tokens=1_000, stream=True)
    assert items_of(rider)[:-1] == dialect_items(dialect, shape, 26)


def dialect_items(dialect: Dialect, shape: Shape, turn: int) -> object:
    envelope = SESSION.envelope(turn, shape)
    return envelope["messages" if "messages" in envelope else "input"]


async def test_cache_marks_and_tools_stay_where_they_are() -> None:
    async with (
        ToyUpstream(window=WINDOW) as toy,
        running_gateway(make_settings(toy, more=NO_PRUNING)) as gateway,
    ):
        run = await play(gateway, toy, MESSAGES)
        await gateway.settle()
    # Without a price the cached tokens of the usage tell that there is a cache.
    assert toy.summaries
    for rider in toy.summaries:
        (before,) = [seen for seen in run.outgoing if items_of(seen) == items_of(rider)[:-1]]
        assert rider.request["tools"] == before.request["tools"]
        assert "tool_choice" not in rider.request


@pytest.mark.parametrize("more", [NO_PRUNING, CACHED + NEVER])
async def test_without_a_cache_or_by_the_policy_the_history_is_quoted(more: str) -> None:
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        await play(gateway, toy, CHAT, last=30)
        await gateway.settle()
    assert toy.summaries and not any(seen.request.get("tools") for seen in toy.summaries)
