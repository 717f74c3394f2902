"""A compaction has one reason, and log, metrics, events and admin API say it in the same word."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from tests.toy.admin_calls import ask_to_compact, get_json, listening, read_metrics
from tests.toy.agent import Session, Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.house import ADMIN, make_settings
from tests.toy.prefix_cache import PrefixCache
from tests.toy.product import Product, serve
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

_BY_SIZE = "policies: {default: {economy: 0, compaction: {prune: false}}}\n"
_SHAPE = Shape(max_tokens=1_000)
_SESSION = make_session(40, 3)
_REASON = re.compile(r"reason=(\S+)")
_COUNTED = re.compile(r'gateway_compactions_by_trigger_total\{reason="([^"]+)",result="done"')


class Told(NamedTuple):
    """The reasons in each place."""

    log: set[str]
    metrics: set[str]
    api: set[str]
    summaries: set[str]


async def read_told(gateway: Product, conversation: str, log: pytest.LogCaptureFixture) -> Told:
    lines = [record.getMessage() for record in log.records if record.name == "gateway.compactor"]
    listed = await get_json(gateway, f"/v1/conversations/{conversation}/log")
    made = await get_json(gateway, f"/v1/conversations/{conversation}/summaries")
    return Told(
        log={found[1] for line in lines if (found := _REASON.search(line))},
        metrics=set(_COUNTED.findall("\n".join(await read_metrics(gateway)))),
        api={entry["reason"] for entry in listed["log"]},
        summaries={summary["reason"] for summary in made["summaries"]},
    )


@asynccontextmanager
async def serving(
    toy: ToyUpstream,
    log: pytest.LogCaptureFixture,
    more: str = _BY_SIZE,
    price: str = "",
    models: str = "toy-*",
) -> AsyncIterator[Product]:
    """models: those whose window is known."""
    log.set_level(logging.INFO, "gateway.compactor")
    async with toy:
        settings = make_settings(toy, price=price, more=ADMIN + more).replace("toy-*", models)
        async with serve(settings) as gateway:
            yield gateway


async def play_turns(
    gateway: Product, toy: ToyUpstream, session: Session, turns: range, shape: Shape = _SHAPE
) -> Run:
    """One turn at a time: what is made in the background is ready for the next."""
    for turn in turns:
        run = await run_session(session, gateway.base_url, toy, shape, Pace(first=turn, last=turn + 1))
        await gateway.at_rest()
    assert run.failed == []
    return run


async def test_a_summary_that_is_prepared_has_the_reason_soft_threshold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy, session = ToyUpstream(window=16_000), make_session(24, 3)
    async with serving(toy, caplog) as gateway:
        run = await play_turns(gateway, toy, session, range(24))
        told = await read_told(gateway, run.conversation, caplog)
    assert told == Told(*[{"soft_threshold"}] * 4)


async def test_a_request_that_waits_has_the_reason_hard_threshold(caplog: pytest.LogCaptureFixture) -> None:
    toy, session = ToyUpstream(window=16_000), make_session(30, 3)
    async with serving(toy, caplog) as gateway:
        run = await play_turns(gateway, toy, session, range(28, 29))
        told = await read_told(gateway, run.conversation, caplog)
    assert told.log == told.metrics == told.api == told.summaries
    assert "hard_threshold" in told.log <= {"hard_threshold", "soft_threshold"}


async def test_a_request_that_the_upstream_refused_has_the_reason_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy, session = ToyUpstream(window=16_000), make_session(30, 3)
    async with serving(toy, caplog, models="another-*") as gateway:
        async with listening(gateway) as heard:
            run = await play_turns(gateway, toy, session, range(28, 29))
            event = await heard.next("overflow")
        told = await read_told(gateway, run.conversation, caplog)
    assert run.refusals
    assert event["retried"] and event["context"] == 16_000 and event["session_id"] == run.conversation
    assert told.log == told.metrics == told.api == told.summaries
    assert "refused" in told.log <= {"refused", "soft_threshold"}


async def test_a_digest_has_the_reason_for_which_a_summary_was_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy, session = ToyUpstream(window=16_000), make_session(30, 3)
    toy.summary_failures = [RawAnswer(status=500, pieces=(b"{}",))] * 9
    async with serving(toy, caplog) as gateway:
        run = await play_turns(gateway, toy, session, range(28, 29))
        (summary,) = (await get_json(gateway, f"/v1/conversations/{run.conversation}/summaries"))["summaries"]
    assert (summary["kind"], summary["reason"]) == ("digest", "hard_threshold")


async def test_old_messages_that_cost_enough_give_the_reason_cost(caplog: pytest.LogCaptureFixture) -> None:
    toy, session = ToyUpstream(window=64_000), make_session(36, 3)
    price = "{input: 1, cached: 0.5, output: 2}"
    toy.cached_share = PrefixCache().read
    async with serving(toy, caplog, "policies: {default: {compaction: {prune: false}}}\n", price) as gateway:
        run = await play_turns(gateway, toy, session, range(36))
        told = await read_told(gateway, run.conversation, caplog)
    assert told == Told(*[{"cost"}] * 4)


async def test_what_a_person_asks_for_has_the_reason_manual(caplog: pytest.LogCaptureFixture) -> None:
    toy, session = ToyUpstream(), make_session(14, 3)
    async with serving(toy, caplog) as gateway:
        run = await play_turns(gateway, toy, session, range(12))
        async with listening(gateway) as heard:
            await ask_to_compact(gateway, run.conversation)
            await gateway.at_rest()
            event = await heard.next("session.compacted")
        told = await read_told(gateway, run.conversation, caplog)
    assert told == Told(*[{"manual"}] * 4)
    assert event["reason"] == "manual"


async def test_digests_for_a_client_whose_histories_never_go_on_have_the_reason_client_trims(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = ToyUpstream(window=16_000)
    async with serving(toy, caplog) as gateway:
        for seed in range(4):
            await play_turns(gateway, toy, make_session(30, seed), range(28, 29))
        reasons = _COUNTED.findall("\n".join(await read_metrics(gateway)))
    assert set(reasons) == {"hard_threshold", "client_trims"}


# A summary is prepared, then in use, then replaced; and one that no request was sent with is counted.


async def play_until(gateway: Product, toy: ToyUpstream, first: int, summaries: int) -> tuple[int, str]:
    """One turn at a time, until so many summaries were made. The next turn, and the conversation."""
    for turn in range(first, len(_SESSION)):
        run = await run_session(_SESSION, gateway.base_url, toy, _SHAPE, Pace(first=turn, last=turn + 1))
        assert run.failed == []
        await gateway.at_rest()
        if len(toy.summaries) >= summaries:
            return turn + 1, run.conversation
    raise AssertionError("too few summaries")


async def read_states(gateway: Product, conversation: str) -> list[str]:
    """The newest first."""
    listed = await get_json(gateway, f"/v1/conversations/{conversation}/summaries")
    return [summary["state"] for summary in listed["summaries"]]


async def read_row(gateway: Product, conversation: str) -> Any:
    return await get_json(gateway, f"/v1/conversations/{conversation}")


async def count_used(gateway: Product) -> float:
    return sum((await read_metrics(gateway, "gateway_summaries_used_total")).values())


async def test_a_summary_is_prepared_then_in_use_then_replaced_and_unused_ones_are_counted() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, more=ADMIN + _BY_SIZE)) as gateway,
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
    async with toy, serve(make_settings(toy, more=ADMIN + _BY_SIZE)) as gateway:
        async with listening(gateway) as heard:
            pace = Pace(first=25, last=26)
            run = await run_session(session, gateway.base_url, toy, _SHAPE, pace)
            await gateway.at_rest()
            event = await heard.next("session.compacted")
        after = await run_session(session, gateway.base_url, toy, _SHAPE, Pace(first=26, last=27))
    assert run.failed == after.failed == []
    assert 0 < event["post_tokens"] < event["pre_tokens"]
