"""What the admin port of one replica tells about conversations that another one has served."""

import asyncio
from typing import Any

from tests.toy.admin_port import ADMIN, ask_to_compact, get, get_json
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.redis_server import requires_redis, running_redis
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

pytestmark = requires_redis


async def read_log(gateway: RunningGateway, conversation: str) -> list[Any]:
    """Empty if it is not known."""
    status, _ = await get(gateway, f"/conversations/{conversation}/log")
    found = (await get_json(gateway, f"/conversations/{conversation}/log"))["log"] if status == 200 else []
    return list(found)


async def test_log_and_originals_are_shown_by_a_replica_that_never_saw_the_conversation() -> None:
    async with running_redis() as server, ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=server.patient_url, more=ADMIN)
        async with running_gateway(settings) as one, running_gateway(settings) as other:
            run = await run_session(make_session(30, 3), one.base_url, toy, Shape(max_tokens=1_000))
            await one.settle()
            await compare(one, other, run.conversation)


async def compare(one: RunningGateway, other: RunningGateway, conversation: str) -> None:
    """one: the replica that has served it."""
    here = await read_log(one, conversation)
    taken = await get_json(one, f"/conversations/{conversation}/originals")
    digest = taken["taken"][0]["messages"][0]["digest"]
    original = await get(one, f"/conversations/{conversation}/originals/{digest}")

    async with asyncio.timeout(30):
        # Entries are queued where they are made, and on the server soon.
        while await read_log(other, conversation) != here:
            await asyncio.sleep(0.02)
    assert await get_json(other, f"/conversations/{conversation}/originals") == taken
    found = await get(other, f"/conversations/{conversation}/originals/{digest}")
    assert found == original and found[0] == 200
    # The list and the page are of this replica alone.
    assert await get_json(other, "/conversations") == {"conversations": [], "next": None}
    assert (await get(other, f"/conversations/{conversation}"))[0] == 404
    assert (await ask_to_compact(other, conversation))[0] == 404
