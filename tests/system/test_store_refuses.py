"""What clients and operators are told by a gateway whose Redis is stopped, or refuses to be read."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.toy.agent import Shape, make_session
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.product import serve
from tests.toy.redis_server import RedisServer, requires_redis, running_redis
from tests.toy.upstream import ToyUpstream

pytestmark = [requires_redis, pytest.mark.timeout(120)]


@dataclass
class Site:
    redis: RedisServer
    house: House

    async def play(self, seed: int) -> None:
        run = await self.house.play(make_session(2, seed), Shape(max_tokens=1_000))
        assert run.failed == []


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    async with (
        running_redis() as redis,
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, store=redis.url, more=ADMIN)) as product,
    ):
        site = Site(redis, House(toy, product, "sk-toy"))
        await site.play(seed=1)
        await site.house.at_rest()
        yield site


async def test_the_admin_port_says_that_the_store_does_not_answer(site: Site) -> None:
    _, before = await site.house.admin("/conversations")
    (shown,) = before["conversations"]
    await site.redis.kill()
    status, after = await site.house.admin("/conversations")
    assert status == 200 and [each["id"] for each in after["conversations"]] == [shown["id"]]
    assert (await site.house.admin(f"/conversations/{shown['id']}"))[0] == 200
    for part in ("log", "originals", "diff"):
        status, problem = await site.house.admin(f"/conversations/{shown['id']}/{part}")
        assert status == 503 and problem["detail"].startswith("the store does not answer: "), problem


async def test_clients_do_not_notice_a_store_that_refuses_to_be_read(site: Site) -> None:
    await site.redis.run("ACL", "SETUSER", "default", "-get", "-mget", "-zscan")
    await site.play(seed=1)
    await site.play(seed=2)
