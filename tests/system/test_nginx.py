"""The balancer of `deploy/compose.yaml`, really run, with two gateways behind it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.system.processes import linux_only
from tests.toy.delivery import Delivery
from tests.toy.house import make_settings
from tests.toy.nginx import Nginx, requires_nginx, running_nginx
from tests.toy.product import Process, serve_process
from tests.toy.running import Answer, ask, wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = [
    requires_nginx,
    linux_only,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]

_HEADERS = {"Authorization": "Bearer sk-toy", "Content-Type": "application/json"}


@dataclass(frozen=True)
class Site:
    toy: ToyUpstream
    gateways: tuple[Process, Process]
    nginx: Nginx
    client: aiohttp.ClientSession

    async def ask(self, text: str = "Hi.") -> Answer:
        body = json.dumps({"model": "toy-model", "messages": [{"role": "user", "content": text}]})
        return await ask(self.client, f"{self.nginx.base_url}/chat/completions", body.encode())

    async def ask_many(self, count: int) -> list[int]:
        """The statuses of so many requests, at most eight at a time."""
        numbers = iter(range(count))
        return [
            status
            for group in await asyncio.gather(*(self._ask_all(numbers) for _ in range(8)))
            for status in group
        ]

    async def _ask_all(self, numbers: Iterator[int]) -> list[int]:
        return [
            (await self.ask(f"Number {number} of {len(self.toy.requests)}.")).status for number in numbers
        ]


@asynccontextmanager
async def opening_site(folder: Path) -> AsyncIterator[Site]:
    folders = [folder / name for name in ("one", "two", "nginx")]
    for each in folders:
        each.mkdir()
    async with ToyUpstream() as toy:
        settings = make_settings(toy)
        # A reload of nginx closes connections that are not in use, and a client that is about to use one has
        # to connect again. aiohttp does so for a GET only.
        connector = aiohttp.TCPConnector(force_close=True)
        async with (
            serve_process(settings, folders[0]) as one,
            serve_process(settings, folders[1]) as two,
            running_nginx(folders[2], [one.port, two.port]) as nginx,
            aiohttp.ClientSession(headers=_HEADERS, connector=connector) as client,
        ):
            yield Site(toy, (one, two), nginx, client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with opening_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module")
async def site(shared_site: Site) -> Site:
    """Both gateways run, and nginx knows their ports."""
    shared_site.toy.reset()
    away = [gateway for gateway in shared_site.gateways if not gateway.is_running]
    for gateway in away:
        await gateway.start()
    if away:
        await shared_site.nginx.use([gateway.port for gateway in shared_site.gateways])
    return shared_site


async def test_what_the_upstream_has_sent_arrives_while_it_is_silent(site: Site) -> None:
    site.toy.delivery = Delivery(stop_after_bytes=400, ending="hang")
    body = {"model": "toy-model", "stream": True, "messages": [{"role": "user", "content": "Hi."}]}
    async with site.client.post(f"{site.nginx.base_url}/chat/completions", json=body) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert (await response.content.read(10)).startswith(b"data: ")


async def test_both_gateways_get_requests_and_each_is_sent_once(site: Site) -> None:
    before = count_conversations(site)
    assert set(await site.ask_many(40)) == {200}
    assert len(site.toy.requests) == 40
    shares = [after - other for after, other in zip(count_conversations(site), before, strict=True)]
    assert sum(shares) == 40 and min(shares) > 0


def count_conversations(site: Site) -> list[int]:
    """By gateway: one line of the log for each new one."""
    return [gateway.log.count("INFO gateway.requests conversation") for gateway in site.gateways]


async def test_a_gateway_that_is_gone_costs_no_request(site: Site) -> None:
    await site.gateways[0].stop()
    assert set(await site.ask_many(20)) == {200}
    assert len(site.toy.requests) == 20


async def test_a_request_that_was_under_way_is_not_sent_to_the_other_gateway(site: Site) -> None:
    site.toy.delivery = Delivery(never=True)
    asking = asyncio.create_task(site.ask())
    await wait_until(lambda: len(site.toy.requests) == 1)
    # Only one of them has it, and both end.
    await asyncio.gather(*(gateway.kill() for gateway in site.gateways))
    answer = await asking
    assert answer.status == 502
    assert len(site.toy.requests) == 1


async def test_bodies_up_to_the_bound_of_the_gateway_pass(site: Site) -> None:
    assert (await site.ask("x" * (31 << 20))).status == 200
    count = len(site.toy.requests)
    with suppress(aiohttp.ClientError):  # nginx answers and closes while the body is still being sent
        assert (await site.ask("x" * (70 << 20))).status == 413
    assert len(site.toy.requests) == count


@pytest.mark.exhaustive  # nginx takes some seconds for each of its four reloads
async def test_gateways_are_replaced_one_by_one_without_a_lost_request(site: Site) -> None:
    is_over = asyncio.Event()
    statuses = list[int]()

    async def ask_until_over() -> None:
        while not is_over.is_set():
            statuses.append((await site.ask()).status)

    asking = [asyncio.create_task(ask_until_over()) for _ in range(4)]
    for gateway in site.gateways:
        await site.nginx.use([each.port for each in site.gateways], left_out=[gateway.port])
        assert await gateway.stop() == 0
        await gateway.start()
        await site.nginx.use([each.port for each in site.gateways])
        enough = len(statuses) + 20
        while len(statuses) < enough:
            await asyncio.sleep(0.01)
    is_over.set()
    await asyncio.gather(*asking)
    assert set(statuses) == {200}
    assert len(site.toy.requests) == len(statuses)
