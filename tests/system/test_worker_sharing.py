"""Workers of one gateway share conversations and limits: one summary per chain, used by whichever worker is
next, and one count of requests for each tenant.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.system.processes import (
    PATIENCE_SECONDS,
    count_starts,
    find_workers,
    has_connection_from,
    is_alive,
    linux_only,
    play,
    post,
    try_post,
    wait_until_started,
)
from tests.toy.agent import Shape, make_session
from tests.toy.delivery import Delivery
from tests.toy.economics import prefix_breaks
from tests.toy.house import make_settings
from tests.toy.product import Process, serve, serve_process
from tests.toy.running import wait_until
from tests.toy.upstream import Seen, ToyUpstream

pytestmark = [linux_only, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(max_tokens=1_000)
WINDOW = 16_000
# Some turns after the second summary and before the third: none begins between two turns here.
SETTLED = 28
# Overflows the window.
TURN = 18
_SESSION = make_session(40, 11, "one_user", 700)
_TENANTS = """
tenants:
  - {name: limited, keys: [sk-limited], requests_per_minute: 20, concurrent_requests: 6}
  - {name: paced, keys: [sk-paced], requests_per_minute: 20}
  - {name: many, keys: [sk-many]}
  - {name: dying, keys: [sk-dying]}
  - {name: toy, keys: [sk-toy]}
"""


@dataclass
class Crew:
    """Three workers, which the tests of this module share. Each test has a tenant of its own."""

    toy: ToyUpstream
    gateway: Process

    async def wait_until_whole(self) -> None:
        await wait_until(
            lambda: [is_alive(each) for each in find_workers(self.gateway).values()] == [True] * 3,
            PATIENCE_SECONDS,
        )

    async def replace_all(self) -> None:
        """Kills every worker that there is, one after the other."""
        for process_id in find_workers(self.gateway).values():
            starts = count_starts(self.gateway)
            os.kill(process_id, signal.SIGKILL)
            await wait_until_started(self.gateway, starts + 1)
        await self.wait_until_whole()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_crew(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Crew]:
    folder = tmp_path_factory.mktemp("sharing")
    async with ToyUpstream(window=WINDOW, bias=1.1) as toy:
        settings = make_settings(toy, store=f"disk:{folder}/state", more=_TENANTS)
        async with serve_process(settings, folder, "--workers", "3") as gateway:
            yield Crew(toy, gateway)


@pytest_asyncio.fixture(loop_scope="module")
async def crew(shared_crew: Crew) -> Crew:
    await shared_crew.wait_until_whole()
    shared_crew.toy.reset()
    return shared_crew


async def test_a_conversation_goes_on_with_its_summary_in_other_workers_and_after_a_restart(
    crew: Crew,
) -> None:
    """It costs no more than in one process."""
    toy, gateway = crew.toy, crew.gateway
    first = await play(_SESSION, [gateway.base_url], toy, SHAPE, 0, SETTLED)
    assert first.failed == [] and "pivot" in first.plans
    made = len(toy.summaries)

    await crew.replace_all()
    after_deaths = await play(_SESSION, [gateway.base_url], toy, SHAPE, SETTLED, SETTLED + 1)
    assert await gateway.stop() == 0
    await gateway.start()
    after_restart = await play(_SESSION, [gateway.base_url], toy, SHAPE, SETTLED + 1, SETTLED + 2)
    for run in (after_deaths, after_restart):
        assert run.failed == [] and run.plans == ["pivot"]
        assert run.conversation == first.conversation
    assert len(toy.summaries) == made

    bodies = [seen.body for run in (first, after_deaths, after_restart) for seen in run.outgoing]
    async with (
        ToyUpstream(window=WINDOW, bias=1.1) as alone,
        serve(make_settings(alone, more="admin: {port: 0}\n")) as single,
    ):
        run = await play(_SESSION, [single.base_url], alone, SHAPE, 0, SETTLED + 2)
    assert made <= len(alone.summaries) >= 2
    assert len(prefix_breaks(bodies)) <= len(prefix_breaks([seen.body for seen in run.outgoing]))


async def test_fifty_overflowing_requests_over_three_workers_make_one_summary(crew: Crew) -> None:
    ready = asyncio.Event()
    crew.toy.summary_delivery = Delivery(after=ready)
    body = _SESSION.request(TURN, SHAPE)
    asked = [asyncio.create_task(post(crew.gateway.base_url, body, "sk-many")) for _ in range(50)]
    await wait_until(lambda: len(crew.toy.summaries) == 1, PATIENCE_SECONDS)
    ready.set()
    answers = await asyncio.gather(*asked)
    assert [answer.status for answer in answers] == [200] * 50
    assert {answer.header("x-gateway-plan") for answer in answers} == {"pivot"}
    assert len(crew.toy.summaries) == 1
    assert len({seen.body for seen in crew.toy.chats}) == 1 and len(crew.toy.chats) == 50


async def test_the_death_of_the_worker_that_makes_a_summary_costs_one_more_call(crew: Crew) -> None:
    toy, body = crew.toy, _SESSION.request(TURN, SHAPE)
    toy.summary_delivery = Delivery(after=asyncio.Event())
    asked = [asyncio.create_task(try_post(crew.gateway.base_url, body, "sk-dying")) for _ in range(30)]
    await wait_until(lambda: len(toy.summaries) == 1, PATIENCE_SECONDS)
    toy.summary_delivery = Delivery()
    os.kill(find_asker(crew.gateway, toy.summaries[0]), signal.SIGKILL)
    whole = [answer for answer in await asyncio.gather(*asked) if answer is not None]
    # Its lease has to run out first. By then answers have begun, so that their clients wait on.
    plans = {answer.header("x-gateway-plan") for answer in whole}
    assert whole and plans <= {"pivot", None} and all(answer.is_whole for answer in whole)
    assert len(toy.summaries) == 2
    assert len({seen.body for seen in toy.chats}) == 1


def find_asker(gateway: Process, seen: Seen) -> int:
    """The process of the worker that has sent this request."""
    (process_id,) = [each for each in find_workers(gateway).values() if has_connection_from(each, seen.port)]
    return process_id


async def test_workers_limit_requests_together(crew: Crew) -> None:
    ready, url = asyncio.Event(), crew.gateway.base_url
    crew.toy.delivery = Delivery(after=ready)
    asked = [asyncio.create_task(post(url, key="sk-limited")) for _ in range(30)]
    await wait_until(
        lambda: len(crew.toy.requests) + sum(task.done() for task in asked) == 30, PATIENCE_SECONDS
    )
    ready.set()
    answers = await asyncio.gather(*asked)
    assert Counter(answer.status for answer in answers) == {200: 6, 429: 24}
    crew.toy.delivery = Delivery()
    # Refused requests did not count. One that has ended gives its place back to other workers a moment later.
    answers = []
    while sum(answer.status == 200 for answer in answers) < 14:
        answers.append(await post(url, key="sk-limited"))
        assert b"a minute" not in answers[-1].body
    # Alone, workers would let in nearly all. A minute that begins in between has room for a few more.
    burst = await asyncio.gather(*(post(url, key="sk-paced") for _ in range(60)))
    statuses = Counter(answer.status for answer in burst)
    assert 20 <= statuses[200] < 40 and statuses[200] + statuses[429] == 60
