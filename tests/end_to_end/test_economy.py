"""Compactions because old messages have cost enough, with an upstream that reports cached tokens.

The window is never near: by the lines alone nothing would be compacted.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.toy.agent import PLAIN, Shape, make_session
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.economics import prefix_breaks
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.prefix_cache import PrefixCache
from tests.toy.running import Pace, run_session
from tests.toy.upstream import Request, ToyUpstream

_WINDOW = 64_000
_PRICE = "{input: 1, cached: 0.5, output: 2}"
_SESSION = make_session(44, 3)
_TURNS = range(len(_SESSION))


class Played(NamedTuple):
    """prompts: as they reached the upstream. compacted: the turns after whose response a summary was made."""

    prompts: list[Request]
    compacted: list[int]
    conversation: str


def settings_of(toy: ToyUpstream, economy: float, store: str = "") -> str:
    policy = f"policies: {{default: {{economy: {economy}, summary: {{ride: never}}}}}}\n"
    return make_settings(toy, store=store, price=_PRICE, more=policy)


async def play(
    gateway: RunningGateway, toy: ToyUpstream, turns: Sequence[int] = _TURNS, shape: Shape = PLAIN
) -> Played:
    """One turn at a time: what is made in the background is ready for the next."""
    prompts: list[Request] = []
    compacted: list[int] = []
    conversation = ""
    for turn in turns:
        summaries = len(toy.summaries)
        run = await run_session(_SESSION, gateway.base_url, toy, shape, Pace(first=turn, last=turn + 1))
        assert run.failed == [] and run.refusals == []
        await gateway.settle()
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
        async with running_gateway(settings_of(toy, 0.0)) as gateway:
            by_size = await play(gateway, toy, shape=shape)
        async with running_gateway(settings_of(toy, 1.0)) as gateway:
            by_price = await play(gateway, toy, shape=shape)
            known = gateway.parts.foundation.activity.find(by_price.conversation)
    assert by_size.compacted == [] and prefix_breaks(by_size.prompts) == []
    assert known is not None and known.totals.compactions == len(by_price.compacted) > 1
    # Nothing but a compaction changes the prefix, with the very next request.
    assert prefix_breaks(by_price.prompts) == [turn + 1 for turn in by_price.compacted]
    # The rent has to come together anew each time.
    assert all(later - earlier > 5 for earlier, later in pairwise(by_price.compacted))


async def test_the_rent_and_the_prefix_survive_a_restart(store_url: str) -> None:
    async with ToyUpstream(window=_WINDOW) as toy:
        toy.cached_share = PrefixCache().read
        async with running_gateway(settings_of(toy, 1.0)) as gateway:
            whole = await play(gateway, toy)
    first, second = whole.compacted[:2]
    # Just before the second one.
    restart = second - 1
    async with ToyUpstream(window=_WINDOW) as toy:
        toy.cached_share = PrefixCache().read
        settings = settings_of(toy, 1.0, store_url)
        async with running_gateway(settings) as gateway:
            before = await play(gateway, toy, range(restart))
        async with running_gateway(settings) as gateway:
            after = await play(gateway, toy, range(restart, len(_SESSION)))
    compacted = [*before.compacted, *after.compacted]
    assert before.compacted == [first]
    assert prefix_breaks([*before.prompts, *after.prompts]) == [turn + 1 for turn in compacted]
    # What is not written with every response is lost, and no more.
    assert second <= after.compacted[0] < second + (second - first) / 2
