"""Workers of one gateway share conversations: one summary per chain, used by whichever worker comes next."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.covering import choose
from tests.hostile.process import ProcessGateway, linux_only, running_process
from tests.toy.agent import Session, Shape, make_session
from tests.toy.delivery import Delivery
from tests.toy.economics import prefix_breaks
from tests.toy.gateway import make_settings
from tests.toy.running import Answer, Pace, Run, ask, run_session, wait_until
from tests.toy.upstream import Seen, ToyUpstream
from tests.workers.load import has_connection_from
from tests.workers.processes import count_starts, find_workers

SHAPE = Shape(max_tokens=1_000)
WINDOW = 16_000
TURNS = 40
# Some turns after the second summary and before the third: none begins between two turns here.
SETTLED = 28

pytestmark = linux_only


async def play(session: Session, gateway: ProcessGateway, toy: ToyUpstream, first: int, last: int) -> Run:
    """Each turn on a connection of its own, so that any worker may get it."""
    run = await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=first, last=first + 1))
    answers, seen = list(run.answers), list(run.seen)
    for turn in range(first + 1, last):
        run = await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=turn, last=turn + 1))
        answers += run.answers
        seen += run.seen
    return Run(answers=tuple(answers), seen=tuple(seen))


async def replace_all(gateway: ProcessGateway, workers: int) -> None:
    """Kills every worker that there is, one after the other."""
    for name, process_id in find_workers(gateway).items():
        before = count_starts(gateway)
        os.kill(process_id, signal.SIGKILL)
        await wait_until(lambda before=before: count_starts(gateway) > before, 150)  # type: ignore[misc]
        assert name in find_workers(gateway)
    assert len(find_workers(gateway)) == workers


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", choose(["disk:state", "memory:"], [0]))
async def test_a_conversation_goes_on_with_its_summary_in_another_worker(tmp_path: Path, store: str) -> None:
    session = make_session(TURNS, 11, "one_user", 700)
    async with (
        ToyUpstream(window=WINDOW, bias=1.1) as toy,
        running_process(make_settings(toy, store=store), tmp_path, "--workers", "2") as gateway,
    ):
        first = await play(session, gateway, toy, 0, SETTLED)
        assert first.failed == [] and "pivot" in first.plans
        await wait_until(lambda: all(seen.finished for seen in toy.summaries))
        made = len(toy.summaries)
        await replace_all(gateway, 2)
        again = await play(session, gateway, toy, SETTLED, SETTLED + 1)
    assert again.failed == []
    assert again.plans == ["pivot"]
    assert len(toy.summaries) == made
    before, after = first.outgoing[-1].request["messages"], again.outgoing[0].request["messages"]
    assert isinstance(before, list) and isinstance(after, list)
    assert after[: len(before)] == before


@pytest.mark.timeout(300)
async def test_turns_on_any_worker_make_no_more_summaries_and_prefix_breaks_than_on_one(
    tmp_path: Path,
) -> None:
    session = make_session(TURNS, 11, "one_user", 700)
    breaks, summaries = [], []
    for workers in ("1", "4"):
        folder = tmp_path / workers
        folder.mkdir()
        async with ToyUpstream(window=WINDOW, bias=1.1) as toy:
            settings = make_settings(toy, store=f"disk:{folder}/state")
            async with running_process(settings, folder, "--workers", workers) as gateway:
                # No summary is due at the end: whether one has begun by then is a matter of speed.
                run = await play(session, gateway, toy, 0, TURNS - 4)
        assert run.failed == []
        breaks.append(len(prefix_breaks([seen.body for seen in run.outgoing])))
        summaries.append(len(toy.summaries))
    assert summaries[0] >= 2
    assert summaries[1] <= summaries[0]
    assert breaks[1] <= breaks[0]


@pytest.mark.timeout(300)
async def test_the_store_on_disk_survives_a_restart_of_all(tmp_path: Path) -> None:
    session = make_session(TURNS, 11, "one_user", 700)
    async with ToyUpstream(window=WINDOW, bias=1.1) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state")
        async with running_process(settings, tmp_path, "--workers", "2") as gateway:
            first = await play(session, gateway, toy, 0, SETTLED)
            assert await gateway.stop() == 0
            made = len(toy.summaries)
            await gateway.start()
            again = await play(session, gateway, toy, SETTLED, SETTLED + 1)
    assert first.failed == again.failed == []
    assert again.plans == ["pivot"]
    assert len(toy.summaries) == made


async def ask_at_once(gateway: ProcessGateway, body: bytes, count: int) -> list[Answer]:
    url = f"{gateway.base_url}/chat/completions"

    async def ask_alone() -> Answer:
        headers = {"Authorization": "Bearer sk-toy", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as client:
            return await ask(client, url, body)

    return await asyncio.gather(*(ask_alone() for _ in range(count)))


@pytest.mark.timeout(300)
async def test_fifty_overflowing_requests_over_four_workers_make_one_summary(tmp_path: Path) -> None:
    session = make_session(TURNS, 11, "one_user", 700)
    async with ToyUpstream(window=WINDOW, bias=1.1) as toy:
        toy.summary_delivery = Delivery(before_headers_seconds=1.0)
        settings = make_settings(toy, store=f"disk:{tmp_path}/state")
        async with running_process(settings, tmp_path, "--workers", "4") as gateway:
            body = session.request(18, SHAPE)
            answers = await ask_at_once(gateway, body, 50)
            assert [answer.status for answer in answers] == [200] * 50
            assert {answer.header("x-gateway-plan") for answer in answers} == {"pivot"}
            assert len(toy.summaries) == 1
            assert len({seen.body for seen in toy.chats}) == 1
            assert len(toy.chats) == 50


@pytest.mark.timeout(300)
async def test_the_death_of_the_worker_that_makes_a_summary_costs_one_more_call(tmp_path: Path) -> None:
    session = make_session(TURNS, 11, "one_user", 700)
    async with ToyUpstream(window=WINDOW, bias=1.1) as toy:
        toy.summary_delivery = Delivery(after=asyncio.Event())
        settings = make_settings(toy, store=f"disk:{tmp_path}/state")
        async with running_process(settings, tmp_path, "--workers", "3") as gateway:
            asking = asyncio.create_task(ask_lenient(gateway, session.request(18, SHAPE), 30))
            await wait_until(lambda: len(toy.summaries) == 1, 150)
            toy.summary_delivery = Delivery()
            os.kill(find_asker(gateway, toy.summaries[0]), signal.SIGKILL)
            answers = await asking
            whole = [answer for answer in answers if answer is not None]
            assert whole and {answer.header("x-gateway-plan") for answer in whole} == {"pivot"}
            assert len(toy.summaries) == 2
            assert len({seen.body for seen in toy.chats}) == 1


def find_asker(gateway: ProcessGateway, seen: Seen) -> int:
    """The process of the worker that has sent this request."""
    (process_id,) = [each for each in find_workers(gateway).values() if has_connection_from(each, seen.port)]
    return process_id


async def ask_lenient(gateway: ProcessGateway, body: bytes, count: int) -> list[Answer | None]:
    """None for a request whose worker died."""
    url = f"{gateway.base_url}/chat/completions"

    async def ask_alone() -> Answer | None:
        headers = {"Authorization": "Bearer sk-toy", "Content-Type": "application/json"}
        try:
            async with aiohttp.ClientSession(headers=headers) as client:
                return await ask(client, url, body)
        except aiohttp.ClientError:
            return None

    return await asyncio.gather(*(ask_alone() for _ in range(count)))
