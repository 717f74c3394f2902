"""What is deleted leaves no word in the store, and nothing else is: over both stores that last."""

import asyncio
import hashlib
import json
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.toy.admin_calls import ask, get, get_json
from tests.toy.delivery import Delivery
from tests.toy.house import ADMIN, make_settings
from tests.toy.product import Product, command, serve
from tests.toy.redis_server import RedisServer
from tests.toy.reply import Reply
from tests.toy.running import ask as ask_upstream
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream

_TENANTS = "tenants: [{name: work, keys: [sk-work]}, {name: rest, keys: [sk-rest]}]\n"
# Each names its conversation in all that it says. The first is deleted; the second is of the same tenant.
_GONE, _BESIDE, _ELSEWHERE = ("gone", "work"), ("beside", "work"), ("elsewhere", "rest")
_TALKS = (_GONE, _BESIDE, _ELSEWHERE)
_ALL = {"text", "compressed"}
_WORD = "canary-of-%s-7461"


def make_history(name: str, turns: int) -> list[dict[str, str]]:
    """Each message holds the name, also in what is quoted of it."""
    word = _WORD % name
    messages = [{"role": "user", "content": f"Build {word}.py for {word}."}]
    for at in range(turns):
        messages.append({"role": "assistant", "content": f"Step {at} of {word} is done."})
        messages.append({"role": "user", "content": f"{word} " * 120})
    return messages


def list_forms(name: str) -> Iterator[tuple[str, bytes]]:
    """The word as records hold it, each with its form. Base64 begins at one of three places."""
    word = (_WORD % name).encode()
    yield "text", word
    yield from (("base64", b64encode(b" " * at + word)[4:-4]) for at in range(3))
    for message in make_history(name, 2):
        yield "compressed", zlib.compress(json.dumps(message).encode())[:60]


@dataclass
class Site:
    toy: ToyUpstream
    store_url: str
    redis: RedisServer | None

    async def find(self, name: str) -> set[str]:
        """In which forms the store holds the words of a conversation."""
        contents = await self._read()
        return {form for form, word in list_forms(name) if any(word in content for content in contents)}

    async def _read(self) -> list[bytes]:
        if self.redis is None:
            return await asyncio.to_thread(_read_files, Path(self.store_url.removeprefix("disk:")))
        await self.redis.run("SAVE")
        return [await asyncio.to_thread((self.redis.folder / "dump.rdb").read_bytes)]

    async def wait_until_all_is_stored(self) -> None:
        async with asyncio.timeout(60):
            while any([await self.find(name) != _ALL for name, _ in _TALKS]):
                await asyncio.sleep(0.05)

    @property
    def settings(self) -> str:
        return make_settings(self.toy, store=self.store_url, more=_TENANTS + ADMIN)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Product]:
        async with serve(self.settings) as product:
            yield product


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


async def send(product: Product, tenant: str, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The id of the conversation, and the plan."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer sk-{tenant}"}) as client:
        answer = await ask_upstream(client, f"{product.base_url}{path}", json.dumps(body).encode())
    assert answer.is_whole, answer.body
    return answer.header("x-gateway-conversation") or "", answer.header("x-gateway-plan") or ""


async def say(product: Product, talk: tuple[str, str], turns: int) -> tuple[str, str]:
    body = {"model": "toy-model", "messages": make_history(talk[0], turns)}
    return await send(product, talk[1], "/chat/completions", body)


async def talk_all(product: Product) -> dict[str, list[str]]:
    """The ids of the conversations, by their names. One of each is a response that requests may name."""
    ids: dict[str, list[str]] = {}
    for name, tenant in _TALKS:
        for turns in (10, 11):
            identity, plan = await say(product, (name, tenant), turns)
            assert plan == "pivot"
        words = make_history(name, 1)[0]["content"]
        named = {"model": "toy-model", "input": words, "store": True}
        ids[name] = [identity, (await send(product, tenant, "/responses", named))[0]]
    await product.at_rest()
    return ids


async def delete(product: Product, ids: list[str]) -> int:
    """How many records that were."""
    count = 0
    for identity in ids:
        status, body = await ask(product, "DELETE", f"/conversations/{identity}")
        assert status == 200, body
        count += sum(value for value in _list_numbers(json.loads(body)))
    return count


async def wait_until_forgotten(product: Product, identity: str) -> None:
    # What another process deletes, it hears of from the store, a moment later.
    async with asyncio.timeout(60):
        while (await get(product, f"/conversations/{identity}"))[0] != 404:
            await asyncio.sleep(0.05)


def _list_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _list_numbers(each)
    elif isinstance(value, int):
        yield value


async def test_no_word_of_a_deleted_conversation_stays_and_the_others_go_on(
    request: pytest.FixtureRequest, store_url: str
) -> None:
    async with open_site(request, store_url) as site:
        async with site.serve() as product:
            ids = await talk_all(product)
            await site.wait_until_all_is_stored()
            summaries = len(site.toy.summaries)
            assert await delete(product, ids["gone"]) >= 8
            assert await site.find("gone") == set()
            for name in ("beside", "elsewhere"):
                assert await site.find(name) == _ALL
            for page in ("", "/log", "/originals", "/summaries", "/requests"):
                assert (await get(product, f"/conversations/{ids['gone'][0]}{page}"))[0] == 404
            listed = (await get_json(product, "/conversations"))["conversations"]
            assert {row["id"] for row in listed} == {*ids["beside"], *ids["elsewhere"]}
            for talk in (_BESIDE, _ELSEWHERE):
                assert (await say(product, talk, 12))[1] == "pivot"
            assert len(site.toy.summaries) == summaries
            assert (await ask(product, "DELETE", f"/conversations/{'0' * 16}"))[0] == 404
        assert await site.find("gone") == set()
        async with site.serve() as product:
            assert (await say(product, _BESIDE, 13))[1] == "pivot"
            assert len(site.toy.summaries) == summaries
            # For the gateway it is a new conversation. Its client does not notice.
            assert await say(product, _GONE, 12) == (ids["gone"][0], "pivot")
            assert len(site.toy.summaries) > summaries


async def test_a_tenant_is_forgotten_and_another_one_is_not(
    request: pytest.FixtureRequest, store_url: str, tmp_path: Path
) -> None:
    async with open_site(request, store_url) as site:
        path = tmp_path / "settings.yaml"
        path.write_text(site.settings)
        async with site.serve() as product:
            ids = await talk_all(product)
            await site.wait_until_all_is_stored()
            summaries = len(site.toy.summaries)
            options = ("--config", str(path), "--admin-port", str(product.admin_port), "--yes")
            done = await asyncio.to_thread(command, "tenants", "purge", "work", *options)
            assert (done.status, done.err.partition(" of work")[0]) == (0, "deleted"), done.err
            for name in ("gone", "beside"):
                assert await site.find(name) == set()
                await wait_until_forgotten(product, ids[name][0])
            assert await site.find("elsewhere") == _ALL
            assert (await say(product, _ELSEWHERE, 12))[1] == "pivot"
            assert len(site.toy.summaries) == summaries
            await product.at_rest()
        for name in ("gone", "beside"):
            assert await site.find(name) == set()
        async with site.serve() as product:
            assert (await say(product, _ELSEWHERE, 13))[1] == "pivot"
            assert len(site.toy.summaries) == summaries
            await say(product, _GONE, 12)
            assert len(site.toy.summaries) > summaries


async def test_what_another_replica_still_holds_of_it_does_not_come_back(
    request: pytest.FixtureRequest, empty_redis: RedisServer
) -> None:
    async with (
        open_site(request, empty_redis.patient_url) as site,
        site.serve() as one,
        site.serve() as other,
    ):
        ids = await talk_all(one)
        for turns in (12, 13):
            assert (await say(other, _GONE, turns))[1] == "pivot"
        await other.at_rest()
        summaries = len(site.toy.summaries)
        await delete(one, ids["gone"])
        await wait_until_forgotten(other, ids["gone"][0])
        assert await site.find("gone") == set()
        assert (await say(other, _BESIDE, 12))[1] == "pivot"
        assert len(site.toy.summaries) == summaries
        await say(other, _GONE, 14)
        assert len(site.toy.summaries) > summaries


async def test_a_summary_under_way_of_it_is_not_kept(request: pytest.FixtureRequest, store_url: str) -> None:
    async with open_site(request, store_url) as site, site.serve() as product:
        site.toy.summary = lambda _: Reply(text=f"Summary {len(site.toy.summaries)}. We went on.")
        identity, _ = await say(product, _GONE, 2)
        ready = asyncio.Event()
        site.toy.summary_delivery = Delivery(after=ready)
        waiting = asyncio.create_task(say(product, _GONE, 10))
        await wait_until(lambda: len(site.toy.summaries) == 1)
        await delete(product, [identity])
        # Nobody pays for the rest of it.
        await wait_until(lambda: site.toy.summaries[0].disconnected)
        ready.set()
        # The request is served, with what the gateway can make without a model.
        assert (await waiting)[0] == identity
        await product.at_rest()
        status, body = await get(product, f"/conversations/{identity}/summaries")
        made = json.loads(body)["summaries"] if status == 200 else []
        assert {summary["kind"] for summary in made} <= {"digest"}
        await say(product, _GONE, 11)
        assert b"Summary 1." not in site.toy.chats[-1].body


async def test_a_request_that_is_under_way_brings_no_summary_of_it_back(
    request: pytest.FixtureRequest, store_url: str
) -> None:
    async with open_site(request, store_url) as site, site.serve() as product:
        for turns in (10, 11):
            identity, _ = await say(product, _GONE, turns)
        await product.at_rest()
        summaries, ready = len(site.toy.summaries), asyncio.Event()
        site.toy.delivery = Delivery(after=ready)
        before = len(site.toy.chats)
        waiting = asyncio.create_task(say(product, _GONE, 12))
        await wait_until(lambda: len(site.toy.chats) > before)
        await delete(product, [identity])
        ready.set()
        assert (await waiting)[1] == "pivot"
        site.toy.delivery = Delivery()
        await product.at_rest()
        # Its body is not kept either: nobody could have a summary made of it.
        assert (await ask(product, "POST", f"/conversations/{identity}/compact", b"{}"))[0] == 409
        assert summaries == len(site.toy.summaries)
        assert await site.find("gone") == set()
        await say(product, _GONE, 13)
        assert len(site.toy.summaries) > summaries


async def test_a_fork_of_it_costs_a_summary_at_worst(request: pytest.FixtureRequest, store_url: str) -> None:
    async with open_site(request, store_url) as site, site.serve() as product:
        ids = [(await say(product, _GONE, turns))[0] for turns in (10, 11)]
        fork = [*make_history("gone", 11)[:-1], {"role": "user", "content": "Another way."}]
        body = {"model": "toy-model", "messages": fork}
        forked, _ = await send(product, "work", "/chat/completions", body)
        assert forked not in ids
        await product.at_rest()
        await delete(product, ids[-1:])
        assert (await send(product, "work", "/chat/completions", body))[1] == "pivot"


async def test_a_summary_that_is_being_made_for_another_one_is_used(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with open_site(request, f"disk:{tmp_path}/state") as site, site.serve() as product:
        identity, _ = await say(product, _GONE, 2)
        ready = asyncio.Event()
        site.toy.summary_delivery = Delivery(after=ready)
        waiting = asyncio.create_task(say(product, _BESIDE, 10))
        await wait_until(lambda: len(site.toy.summaries) == 1)
        await delete(product, [identity])
        ready.set()
        assert (await waiting)[1] == "pivot"


async def test_a_message_that_another_conversation_holds_too_stays(
    request: pytest.FixtureRequest, store_url: str
) -> None:
    """Two of one tenant that say the same after their tasks."""
    async with open_site(request, store_url) as site, site.serve() as product:
        ids, shared = [], make_history("beside", 10)[1:]
        for task in ("Build a boat.", "Build a house."):
            body = {"model": "toy-model", "messages": [{"role": "user", "content": task}, *shared]}
            identity, plan = await send(product, "work", "/chat/completions", body)
            assert plan == "pivot"
            ids.append(identity)
        await product.at_rest()
        taken = [(await get_json(product, f"/conversations/{each}/originals"))["taken"] for each in ids]
        gone, stays = ({each["digest"] for lists in found for each in lists["messages"]} for found in taken)
        assert gone & stays
        await delete(product, ids[:1])
        for digest in stays:
            assert (await get(product, f"/conversations/{ids[1]}/originals/{digest}"))[0] == 200


async def test_a_deletion_that_the_store_refuses_is_said(
    request: pytest.FixtureRequest, empty_redis: RedisServer
) -> None:
    async with open_site(request, empty_redis.patient_url) as site, site.serve() as product:
        ids = await talk_all(product)
        tag = hashlib.sha256(b"owner:tenant:work").hexdigest()[:32]
        await empty_redis.stop()
        try:
            for method, path, body in (
                ("DELETE", f"/conversations/{ids['gone'][0]}", b""),
                ("POST", "/tenants/purge", json.dumps({"tag": tag}).encode()),
            ):
                status, told = await ask(product, method, path, body)
                assert status == 503 and b"not deleted" in told
        finally:
            await empty_redis.start()


@pytest.mark.parametrize("tag", ["", "work", "../x", "0" * 5])
async def test_a_purge_of_what_is_no_tenant_deletes_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, tag: str
) -> None:
    async with open_site(request, f"disk:{tmp_path}/state") as site, site.serve() as product:
        identity, _ = await say(product, _GONE, 10)
        status, body = await ask(product, "POST", "/tenants/purge", json.dumps({"tag": tag}).encode())
        assert status == 400 or not any(_list_numbers(json.loads(body)))
        assert (await get(product, f"/conversations/{identity}"))[0] == 200
        assert (await ask(product, "POST", "/tenants/purge", b"{}", token=None))[0] == 401
