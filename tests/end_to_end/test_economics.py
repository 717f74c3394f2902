"""What is told of the costs of a conversation: what it cost, and what it would have cost unshortened."""

import json
from itertools import accumulate
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Shape, make_session
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0}\n"
_ASKING = {"x-gateway-economics": "1"}
_SESSION = make_session(30, 3)
_WINDOW = 16_000
# Of money that is estimated.
_TOLERANCE = 0.03


async def read_row(gateway: RunningGateway, identity: str) -> Any:
    url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{identity}"
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        assert response.status == 200, await response.read()
        return await response.json()


def count_unshortened(toy: ToyUpstream, shape: Shape) -> list[int]:
    """What the upstream would count of each request as the client sends it."""
    bodies = [_SESSION.request(turn, shape) for turn in range(len(_SESSION))]
    return [shape.dialect.count(toy.counter, json.loads(body)) for body in bodies]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_money_without_the_gateway_is_that_of_the_same_requests_unshortened(dialect: Dialect) -> None:
    shape = Shape(dialect=dialect, stream=True)
    async with ToyUpstream(window=_WINDOW) as toy:
        # Cached tokens cost as much as new ones, so that only sizes matter.
        settings = make_settings(toy, price="{input: 1, output: 0}", more=_ADMIN)
        async with running_gateway(settings) as gateway:
            run = await run_session(_SESSION, gateway.base_url, toy, shape, Pace(headers=_ASKING))
            assert run.failed == []
            await gateway.settle()
            row = await read_row(gateway, run.conversation)
        truth = count_unshortened(toy, shape)
    dies_at = next(number for number, tokens in enumerate(truth, 1) if tokens > _WINDOW)
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
    assert told.startswith(f"requests={len(_SESSION) - 1}, ") and f"died_at={row['died_at']}, " in told
    names = {name.lower() for seen in toy.requests for name, _ in seen.headers}
    assert not any(name.startswith("x-gateway") for name in names)
