"""Limits of a tenant hold over all workers of one gateway."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.hostile.process import ProcessGateway, linux_only, running_process
from tests.toy.delivery import Delivery
from tests.toy.gateway import make_settings
from tests.toy.running import Answer, ask, wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = linux_only

_BODY = json.dumps({"model": "toy-1", "messages": [{"role": "user", "content": "Hi."}]}).encode()
_TENANTS = "tenants:\n  - {name: a, keys: [sk-a], requests_per_minute: 20, concurrent_requests: 6}\n"


async def post(gateway: ProcessGateway) -> Answer:
    """On a connection of its own, so that any worker may get it."""
    headers = {"Authorization": "Bearer sk-a", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as client:
        return await ask(client, f"{gateway.base_url}/chat/completions", _BODY)


@pytest.mark.timeout(300)
async def test_workers_limit_requests_together(tmp_path: Path) -> None:
    async with (
        ToyUpstream() as toy,
        running_process(make_settings(toy, more=_TENANTS), tmp_path, "--workers", "2") as gateway,
    ):
        ready = asyncio.Event()
        toy.delivery = Delivery(after=ready)
        asked = [asyncio.create_task(post(gateway)) for _ in range(30)]
        await wait_until(lambda: len(toy.requests) == 6 and sum(task.done() for task in asked) == 24)
        ready.set()
        answers = await asyncio.gather(*asked)
        assert Counter(answer.status for answer in answers) == {200: 6, 429: 24}
        toy.delivery = Delivery()
        # Refused requests did not count. A minute that begins in between has room for one more.
        statuses = [(await post(gateway)).status for _ in range(18)]
        assert statuses.count(200) in (14, 15) and set(statuses) == {200, 429}
