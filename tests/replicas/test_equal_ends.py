"""Two histories of one tenant end alike, at whichever replicas, and their clients drop what is old.

No word of one is in anything that is sent for the other. Both have a digest soon, which quotes them.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.builders.chat import JSON
from tests.builders.downstream import open_line, settle
from tests.builders.pipeline import Pipeline, render_post, running_pipeline
from tests.builders.trimmed import say
from tests.toy.replicas import ToyServers
from tests.toy.shared_store import SharedStore

_REPLICAS = 2


def say_own(name: str, turns: int, since: int = 0) -> list[JSON]:
    """What only one of the histories says: every message names it."""
    return say(since + turns, f"only-{name}")[1 + 4 * since :]


def say_same(turns: int) -> list[JSON]:
    return say(turns, "same")[1:]


@dataclass
class Replicas:
    servers: ToyServers
    pipelines: list[Pipeline]
    stores: list[SharedStore]

    async def answer(self, at: int, messages: list[JSON], session: str | None = None) -> bytes:
        """What is sent upstream for this request."""
        sent = await answer(self.pipelines[at], messages, session)
        await self.settle()
        return sent

    async def settle(self) -> None:
        while not all(pipeline.compactor.is_idle for pipeline in self.pipelines):
            await asyncio.sleep(0)
        await settle()


async def answer(pipeline: Pipeline, messages: list[JSON], session: str | None) -> bytes:
    more = [f"x-gateway-session: {session}"] if session is not None else []
    post = render_post(json.dumps({"model": "toy", "messages": messages}).encode(), more=more)
    async with open_line(pipeline.proxy.respond) as line:
        await line.send(post)
        while not line.written and not line.is_closed:
            await asyncio.sleep(0)
    return pipeline.sent[-1]


@asynccontextmanager
async def running_replicas() -> AsyncIterator[Replicas]:
    replicas = Replicas(ToyServers(), [], [])
    async with AsyncExitStack() as exits:
        for _ in range(_REPLICAS):
            stores = replicas.servers.connect()
            assert isinstance(stores.main, SharedStore)
            replicas.stores.append(stores.main)
            running = running_pipeline(stores=stores)
            replicas.pipelines.append(await exits.enter_async_context(running))
        yield replicas
        await replicas.settle()


_FIRST = [*say(0, "only-a"), *say_own("a", 12), *say_same(10)]
_SECOND = [*say(0, "only-b"), *say_own("b", 12), *say_same(10)]
# Of the first one, with the messages that both end with.
_LEFT = [*say_same(10)[-36:], *say_own("a", 1, 20)]


async def test_a_history_that_ended_like_one_elsewhere_is_not_taken_for_that() -> None:
    async with running_replicas() as replicas:
        await replicas.answer(0, _FIRST)
        assert b"only-b" in await replicas.answer(1, _SECOND)
        assert b"only-b" not in await replicas.answer(1, _LEFT)


@pytest.mark.parametrize("at", [0, 1])
async def test_one_that_its_client_has_named_is_recognized_at_any_replica(at: int) -> None:
    async with running_replicas() as replicas:
        await replicas.answer(1, _FIRST, "a")
        assert b"only-a:1" in await replicas.answer(at, _LEFT, "a")
        assert b"only-a:1" not in await replicas.answer(at, _LEFT, "other")
