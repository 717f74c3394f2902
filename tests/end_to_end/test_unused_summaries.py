"""A summary is prepared, then in use, then replaced; and one that no request was sent with is counted."""

from typing import Any

import aiohttp

from gateway.reporting.events import SessionCompacted
from tests.toy.admin_port import ADMIN, get_json
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream

_BY_SIZE = ADMIN + "policies: {default: {economy: 0, compaction: {prune: false}}}\n"
_SHAPE = Shape(max_tokens=1_000)
_SESSION = make_session(40, 3)


async def play_until(
    gateway: RunningGateway, toy: ToyUpstream, first: int, summaries: int
) -> tuple[int, str]:
    """One turn at a time, until so many summaries were made. The next turn, and the conversation."""
    for turn in range(first, len(_SESSION)):
        run = await run_session(_SESSION, gateway.base_url, toy, _SHAPE, Pace(first=turn, last=turn + 1))
        assert run.failed == []
        await gateway.settle()
        if len(toy.summaries) >= summaries:
            return turn + 1, run.conversation
    raise AssertionError("too few summaries")


async def read_states(gateway: RunningGateway, conversation: str) -> list[str]:
    """The newest first."""
    listed = await get_json(gateway, f"/v1/conversations/{conversation}/summaries")
    return [summary["state"] for summary in listed["summaries"]]


async def read_row(gateway: RunningGateway, conversation: str) -> Any:
    return await get_json(gateway, f"/v1/conversations/{conversation}")


async def count_used(gateway: RunningGateway) -> float:
    url = f"http://127.0.0.1:{gateway.admin_port}/metrics"
    headers = {"Authorization": "Bearer toy-admin"}
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("gateway_summaries_used_total"))


async def test_a_summary_is_prepared_then_in_use_then_replaced_and_unused_ones_are_counted() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=_BY_SIZE)) as gateway,
    ):
        turn, conversation = await play_until(gateway, toy, 0, 1)
        assert await read_states(gateway, conversation) == ["prepared"]
        assert (await read_row(gateway, conversation))["economics"]["unused_summaries"] == 1
        assert await count_used(gateway) == 0
        turn, conversation = await play_until(gateway, toy, turn, 2)
        assert await read_states(gateway, conversation) == ["prepared", "in_use"]
        assert await count_used(gateway) == 1
        await play_until(gateway, toy, turn, 3)
        assert await read_states(gateway, conversation) == ["prepared", "in_use", "replaced"]
        row = await read_row(gateway, conversation)
        assert (row["compactions"], row["economics"]["unused_summaries"]) == (3, 1)
        assert await count_used(gateway) == 2


async def test_what_is_left_after_the_first_summary_is_told_as_the_upstream_counts() -> None:
    """The upstream counts fewer tokens than we do, so that a summary seems to save more than was there."""
    toy, session = ToyUpstream(window=16_000, bias=0.5), make_session(30, 3)
    async with toy, running_gateway(make_settings(toy, more=_BY_SIZE)) as gateway:
        with gateway.bus.subscribe() as heard:
            pace = Pace(first=25, last=26)
            run = await run_session(session, gateway.base_url, toy, _SHAPE, pace)
            await gateway.settle()
            told = [event for event in heard.take() if isinstance(event, SessionCompacted)]
        after = await run_session(session, gateway.base_url, toy, _SHAPE, Pace(first=26, last=27))
    assert run.failed == after.failed == [] and len(told) > 0
    for event in told:
        assert event.post_tokens is not None
        assert 0 < event.post_tokens < event.pre_tokens
