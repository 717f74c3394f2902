"""One conversation is deleted with everything it left, and nothing else is: over both stores that last."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from gateway.purge.stored import PurgeCount
from gateway.store.keys import make_tag
from tests.hostile.test_purge import dump, find_forms, make_history
from tests.toy.admin_port import ADMIN
from tests.toy.delivery import Delivery
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.redis_server import RedisServer
from tests.toy.reply import Reply
from tests.toy.running import ask, wait_until
from tests.toy.upstream import ToyUpstream

_TENANTS = "tenants: [{name: work, keys: [sk-work]}, {name: rest, keys: [sk-rest]}]\n"
# Each names its conversation in all that it says. The first is deleted; the second is of the same tenant.
_GONE, _BESIDE, _ELSEWHERE = ("gone", "work"), ("beside", "work"), ("elsewhere", "rest")
_TALKS = (_GONE, _BESIDE, _ELSEWHERE)
_ALL = {"text", "base64", "compressed"}


@dataclass
class Site:
    toy: ToyUpstream
    store_url: str
    redis: RedisServer | None

    async def read_store(self) -> list[bytes]:
        if self.redis is not None:
            return [await dump(self.redis)]
        return await asyncio.to_thread(_read_files, Path(self.store_url.removeprefix("disk:")))

    async def wait_until_all_is_stored(self) -> None:
        async with asyncio.timeout(60):
            while any([await self.find(name) != _ALL for name, _ in _TALKS]):
                await asyncio.sleep(0.05)

    async def find(self, name: str) -> set[str]:
        """In which forms the store holds the words of a conversation."""
        return find_forms(name, await self.read_store()) & _ALL

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[RunningGateway]:
        settings = make_settings(self.toy, store=self.store_url, more=_TENANTS + ADMIN)
        async with running_gateway(settings) as gateway:
            yield gateway


def _read_files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


@asynccontextmanager
async def open_site(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[Site]:
    is_redis = store_url.startswith("redis")
    redis: RedisServer | None = request.getfixturevalue("empty_redis") if is_redis else None
    if redis is not None:
        await redis.run("CONFIG", "SET", "rdbcompression", "no")
    async with ToyUpstream(window=8_000) as toy:
        toy.reply = lambda _: Reply(text="Done.")
        yield Site(toy, store_url, redis)


async def say(gateway: RunningGateway, talk: tuple[str, str], turns: int) -> tuple[str, str]:
    """One request of a conversation. Its id, and its plan."""
    name, tenant = talk
    body = json.dumps({"model": "toy-model", "messages": make_history(name, turns)}).encode()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer sk-{tenant}"}) as client:
        answer = await ask(client, f"{gateway.base_url}/chat/completions", body)
        assert answer.is_whole
    return answer.header("x-gateway-conversation") or "", answer.header("x-gateway-plan") or ""


async def name_response(gateway: RunningGateway, talk: tuple[str, str]) -> str:
    """A response that later requests may name. The id of its conversation."""
    name, tenant = talk
    words = make_history(name, 1)[0]["content"]
    body = json.dumps({"model": "toy-model", "input": words, "store": True}).encode()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer sk-{tenant}"}) as client:
        answer = await ask(client, f"{gateway.base_url}/responses", body)
        assert answer.status == 200
    return answer.header("x-gateway-conversation") or ""


async def talk_all(gateway: RunningGateway) -> dict[str, list[str]]:
    """The ids of the conversations, by their names."""
    ids: dict[str, list[str]] = {}
    for talk in _TALKS:
        for turns in (10, 11):
            identity, plan = await say(gateway, talk, turns)
            assert plan == "pivot"
        ids[talk[0]] = [identity, await name_response(gateway, talk)]
    await gateway.settle()
    return ids


async def delete(gateway: RunningGateway, ids: list[str]) -> PurgeCount:
    count = PurgeCount()
    for identity in ids:
        count = count.plus(
            await gateway.parts.foundation.delete_conversation(make_tag("tenant:work"), identity)
        )
    return count


async def test_no_word_of_it_stays_and_the_others_go_on(
    request: pytest.FixtureRequest, store_url: str
) -> None:
    async with open_site(request, store_url) as site:
        async with site.gateway() as gateway:
            ids = await talk_all(gateway)
            await site.wait_until_all_is_stored()
            summaries = len(site.toy.summaries)
            count = await delete(gateway, ids["gone"])
            assert count.state >= 3 and count.originals >= 3 and count.named >= 2
            assert await site.find("gone") == set()
            for name in ("beside", "elsewhere"):
                assert await site.find(name) == _ALL
            assert gateway.parts.foundation.registry.find(ids["gone"][0]) is None
            assert gateway.parts.foundation.activity.find(ids["gone"][0]) is None
            for talk in (_BESIDE, _ELSEWHERE):
                assert (await say(gateway, talk, 12))[1] == "pivot"
            assert len(site.toy.summaries) == summaries
        assert await site.find("gone") == set()
        async with site.gateway() as gateway:
            assert (await say(gateway, _BESIDE, 13))[1] == "pivot"
            assert len(site.toy.summaries) == summaries
            # For the gateway it is a new conversation. Its client does not notice.
            assert await say(gateway, _GONE, 12) == (ids["gone"][0], "pivot")
            assert len(site.toy.summaries) > summaries


async def test_what_another_replica_still_holds_of_it_does_not_come_back(
    request: pytest.FixtureRequest, empty_redis: RedisServer
) -> None:
    async with (
        open_site(request, empty_redis.patient_url) as site,
        site.gateway() as one,
        site.gateway() as other,
    ):
        ids = await talk_all(one)
        for turns in (12, 13):
            assert (await say(other, _GONE, turns))[1] == "pivot"
        await other.settle()
        summaries = len(site.toy.summaries)
        await delete(one, ids["gone"])
        await wait_until(lambda: other.parts.foundation.registry.find(ids["gone"][0]) is None)
        assert other.parts.foundation.state.heads.list_of(ids["gone"][0]) == []
        assert await site.find("gone") == set()
        assert (await say(other, _BESIDE, 12))[1] == "pivot"
        assert len(site.toy.summaries) == summaries
        await say(other, _GONE, 14)
        assert len(site.toy.summaries) > summaries


async def test_a_summary_that_is_being_made_for_it_is_not_stored(
    request: pytest.FixtureRequest, store_url: str
) -> None:
    async with open_site(request, store_url) as site, site.gateway() as gateway:
        identity, _ = await say(gateway, _GONE, 2)
        ready = asyncio.Event()
        site.toy.summary_delivery = Delivery(after=ready)
        waiting = asyncio.create_task(say(gateway, _GONE, 10))
        await wait_until(lambda: len(site.toy.summaries) == 1)
        await delete(gateway, [identity])
        ready.set()
        # The request is served, with what the gateway can make without a model.
        assert (await waiting)[0] == identity
        await gateway.settle()
        stored = await gateway.parts.foundation.stores.main.scan("pivot:")
        assert all(json.loads(data)["record"]["is_digest"] for _, data in stored)


async def test_a_fork_of_it_makes_at_worst_a_new_summary(
    request: pytest.FixtureRequest, store_url: str
) -> None:
    async with open_site(request, store_url) as site, site.gateway() as gateway:
        ids = [(await say(gateway, _GONE, turns))[0] for turns in (10, 11)]
        fork = make_history("gone", 11)
        fork[-1] = {"role": "user", "content": "Another way."}
        body = json.dumps({"model": "toy-model", "messages": fork}).encode()
        headers = {"Authorization": "Bearer sk-work"}
        async with aiohttp.ClientSession(headers=headers) as client:
            url = f"{gateway.base_url}/chat/completions"
            forked = await ask(client, url, body)
            assert forked.header("x-gateway-conversation") not in ids
            await gateway.settle()
            await delete(gateway, ids[-1:])
            again = await ask(client, url, body)
        assert again.is_whole and again.header("x-gateway-plan") == "pivot"
