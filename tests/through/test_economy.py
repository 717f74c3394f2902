"""Compactions because old messages have cost enough, with an upstream that reports cached tokens.

The window is never near: by the lines alone nothing would be compacted.
"""

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import pytest

from tests.toy.admin_calls import get_json
from tests.toy.agent import PLAIN, Shape, make_session
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.economics import prefix_breaks
from tests.toy.house import ADMIN, make_settings
from tests.toy.prefix_cache import PrefixCache
from tests.toy.product import Product, serve
from tests.toy.running import Pace, run_session
from tests.toy.upstream import Request, ToyUpstream

_WINDOW = 64_000
_PRICE = "{input: 1, cached: 0.5, output: 2}"
_SESSION = make_session(44, 3)
_TURNS = range(len(_SESSION))
_SHORT, _SMALL = make_session(30, 3), 16_000
_ASKING = {"x-gateway-economics": "1"}
# Of money that is estimated.
_TOLERANCE = 0.03


class Played(NamedTuple):
    """prompts: as they reached the upstream. compacted: the turns after whose response a summary was made."""

    prompts: list[Request]
    compacted: list[int]
    conversation: str


def settings_of(toy: ToyUpstream, economy: float, store: str = "") -> str:
    policy = f"policies: {{default: {{economy: {economy}, summary: {{ride: never}}}}}}\n"
    return make_settings(toy, store=store or "memory:", price=_PRICE, more=ADMIN + policy)


async def play(
    gateway: Product, toy: ToyUpstream, turns: Sequence[int] = _TURNS, shape: Shape = PLAIN
) -> Played:
    """One turn at a time: what is made in the background is ready for the next."""
    prompts: list[Request] = []
    compacted: list[int] = []
    conversation = ""
    for turn in turns:
        summaries = len(toy.summaries)
        run = await run_session(_SESSION, gateway.base_url, toy, shape, Pace(first=turn, last=turn + 1))
        assert run.failed == [] and run.refusals == []
        await gateway.at_rest()
        prompts += run.prompts
        compacted += [turn] * (len(toy.summaries) > summaries)
        conversation = run.conversation
    return Played(prompts, compacted, conversation)


# What is decided does not depend on the format; only the reported usage does.
@pytest.mark.parametrize(
    "dialect", [DIALECTS[0], *(pytest.param(each, marks=pytest.mark.exhaustive) for each in DIALECTS[1:])]
)
async def test_old_messages_that_cost_enough_are_compacted_far_below_the_lines(dialect: Dialect) -> None:
    shape = Shape(dialect=dialect, max_tokens=1_000)
    async with ToyUpstream(window=_WINDOW) as toy:
        toy.cached_share = PrefixCache().read
        async with serve(settings_of(toy, 0.0)) as gateway:
            by_size = await play(gateway, toy, shape=shape)
        async with serve(settings_of(toy, 1.0)) as gateway:
            by_price = await play(gateway, toy, shape=shape)
            known = await get_json(gateway, f"/conversations/{by_price.conversation}")
    assert by_size.compacted == [] and prefix_breaks(by_size.prompts) == []
    assert known["compactions"] == len(by_price.compacted) > 1
    # Nothing but a compaction changes the prefix, with the very next request.
    assert prefix_breaks(by_price.prompts) == [turn + 1 for turn in by_price.compacted]
    # The rent has to come together anew each time.
    assert all(later - earlier > 5 for earlier, later in pairwise(by_price.compacted))


async def test_the_rent_and_the_prefix_survive_a_restart(store_url: str) -> None:
    async with ToyUpstream(window=_WINDOW) as toy:
        toy.cached_share = PrefixCache().read
        async with serve(settings_of(toy, 1.0)) as gateway:
            whole = await play(gateway, toy)
    first, second = whole.compacted[:2]
    # Just before the second one.
    restart = second - 1
    async with ToyUpstream(window=_WINDOW) as toy:
        toy.cached_share = PrefixCache().read
        settings = settings_of(toy, 1.0, store_url)
        async with serve(settings) as gateway:
            before = await play(gateway, toy, range(restart))
        async with serve(settings) as gateway:
            after = await play(gateway, toy, range(restart, len(_SESSION)))
    compacted = [*before.compacted, *after.compacted]
    assert before.compacted == [first]
    assert prefix_breaks([*before.prompts, *after.prompts]) == [turn + 1 for turn in compacted]
    # What is not written with every response is lost, and no more.
    assert second <= after.compacted[0] < second + (second - first) / 2


# What is told of the costs: what it cost, and what it would have cost unshortened.


def count_unshortened(toy: ToyUpstream, shape: Shape) -> list[int]:
    """What the upstream would count of each request as the client sends it."""
    bodies = [_SHORT.request(turn, shape) for turn in range(len(_SHORT))]
    return [shape.dialect.count(toy.counter, json.loads(body)) for body in bodies]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_money_without_the_gateway_is_that_of_the_same_requests_unshortened(dialect: Dialect) -> None:
    shape = Shape(dialect=dialect, stream=True)
    async with ToyUpstream(window=_SMALL) as toy:
        # Cached tokens cost as much as new ones, so that only sizes matter.
        settings = make_settings(toy, price="{input: 1, output: 0}", more=ADMIN)
        async with serve(settings) as gateway:
            run = await run_session(_SHORT, gateway.base_url, toy, shape, Pace(headers=_ASKING))
            assert run.failed == []
            await gateway.at_rest()
            row = await get_json(gateway, f"/conversations/{run.conversation}")
        truth = count_unshortened(toy, shape)
    dies_at = next(number for number, tokens in enumerate(truth, 1) if tokens > _SMALL)
    assert abs(row["died_at"] - dies_at) <= 1
    economics = row["economics"]
    compared = economics["compared_requests"]
    assert compared == row["died_at"] - 1 and economics["died"] == 1
    sums = list(accumulate(truth))
    assert economics["without_usd"] * 1e6 == pytest.approx(sums[compared - 1], rel=_TOLERANCE)
    answered, summaries = toy.chats, toy.summaries
    assert row["spent_usd"] * 1e6 == pytest.approx(sum(seen.prompt_tokens for seen in answered))
    assert row["summary_usd"] * 1e6 == pytest.approx(sum(seen.prompt_tokens for seen in summaries))
    assert economics["summary_calls"] == len(summaries) >= 2
    assert economics["with_usd"] < row["spent_usd"] + row["summary_usd"]
    # The newest summary may not have been sent yet.
    assert 0 < economics["breaks"]["compaction"] == row["cache_breaks"] <= row["compactions"]
    # The last request was told what came before it, and the upstream nothing.
    told = run.answers[-1].header("x-gateway-economics") or ""
    assert told.startswith(f"requests={len(_SHORT) - 1}, ") and f"died_at={row['died_at']}, " in told
    names = {name.lower() for seen in toy.requests for name, _ in seen.headers}
    assert not any(name.startswith("x-gateway") for name in names)
