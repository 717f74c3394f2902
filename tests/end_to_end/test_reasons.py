"""A compaction has one reason, and log, metrics, events and admin API say it in the same word."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
import pytest

from gateway.reporting.events import SessionCompacted
from tests.toy.admin_port import ADMIN, ask_to_compact, get_json
from tests.toy.agent import Session, Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.prefix_cache import PrefixCache
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream

_BY_SIZE = "policies: {default: {economy: 0, compaction: {prune: false}}}\n"
_SHAPE = Shape(max_tokens=1_000)
_REASON = re.compile(r"reason=(\S+)")
_COUNTED = re.compile(r'gateway_compactions_by_trigger_total\{reason="([^"]+)",result="done"')


class Told(NamedTuple):
    """The reasons in each place."""

    log: set[str]
    metrics: set[str]
    api: set[str]
    summaries: set[str]


async def read_told(gateway: RunningGateway, conversation: str, log: pytest.LogCaptureFixture) -> Told:
    lines = [record.getMessage() for record in log.records if record.name == "gateway.compactor"]
    listed = await get_json(gateway, f"/v1/conversations/{conversation}/log")
    made = await get_json(gateway, f"/v1/conversations/{conversation}/summaries")
    return Told(
        log={found[1] for line in lines if (found := _REASON.search(line))},
        metrics=set(_COUNTED.findall(await read_metrics(gateway))),
        api={entry["reason"] for entry in listed["log"]},
        summaries={summary["reason"] for summary in made["summaries"]},
    )


async def read_metrics(gateway: RunningGateway) -> str:
    url = f"http://127.0.0.1:{gateway.admin_port}/metrics"
    headers = {"Authorization": "Bearer toy-admin"}
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as response:
        return await response.text()


@asynccontextmanager
async def serving(
    toy: ToyUpstream,
    log: pytest.LogCaptureFixture,
    more: str = _BY_SIZE,
    price: str = "",
    models: str = "toy-*",
) -> AsyncIterator[RunningGateway]:
    """models: those whose window is known."""
    log.set_level(logging.INFO, "gateway.compactor")
    async with toy:
        settings = make_settings(toy, price=price, more=ADMIN + more).replace("toy-*", models)
        async with running_gateway(settings) as gateway:
            yield gateway


async def play_turns(
    gateway: RunningGateway, toy: ToyUpstream, session: Session, turns: range, shape: Shape = _SHAPE
) -> Run:
    """One turn at a time: what is made in the background is ready for the next."""
    for turn in turns:
        run = await run_session(session, gateway.base_url, toy, shape, Pace(first=turn, last=turn + 1))
        await gateway.settle()
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
        run = await play_turns(gateway, toy, session, range(28, 29))
        told = await read_told(gateway, run.conversation, caplog)
    assert run.refusals
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
        with gateway.bus.subscribe() as heard:
            await ask_to_compact(gateway, run.conversation)
            await gateway.settle()
            events = [event for event in heard.take() if isinstance(event, SessionCompacted)]
        told = await read_told(gateway, run.conversation, caplog)
    assert told == Told(*[{"manual"}] * 4)
    assert [event.reason for event in events] == ["manual"]


async def test_digests_for_a_client_whose_histories_never_go_on_have_the_reason_client_trims(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = ToyUpstream(window=16_000)
    async with serving(toy, caplog) as gateway:
        for seed in range(4):
            await play_turns(gateway, toy, make_session(30, seed), range(28, 29))
        reasons = _COUNTED.findall(await read_metrics(gateway))
    assert set(reasons) == {"hard_threshold", "client_trims"}
