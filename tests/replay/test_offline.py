"""What stands where a gateway reaches an upstream."""

import asyncio

import pytest

from gateway.planning.tokenizer import Tokenizer
from gateway.replay.offline import (
    SUMMARY_TOKENS,
    InlineLanes,
    OfflineClient,
    choose_summary_tokens,
    make_summary_text,
)


@pytest.mark.parametrize("tokens", [100, 700, SUMMARY_TOKENS])
def test_a_summary_has_about_the_stated_length(tokens: int) -> None:
    assert Tokenizer().count(make_summary_text(tokens)) == pytest.approx(tokens, rel=0.1, abs=20)


def test_a_summary_stays_below_its_cap() -> None:
    assert choose_summary_tokens(100_000) == SUMMARY_TOKENS
    assert choose_summary_tokens(1_000) == 800
    assert choose_summary_tokens(1) > 0


async def test_the_client_waits_for_as_long_as_it_takes() -> None:
    async def work() -> int:
        await asyncio.sleep(0.01)
        return 3

    task = asyncio.ensure_future(work())
    assert await OfflineClient().wait_for(task, {}, max_seconds=0)
    assert task.result() == 3


async def test_work_of_lanes_is_done_before_anything_else_runs() -> None:
    lanes = InlineLanes()
    others: list[str] = []
    asyncio.get_running_loop().call_soon(others.append, "ran")
    assert await lanes.run("owner", 1, max, 2, 5) == 5
    assert others == []
    lanes.close()
