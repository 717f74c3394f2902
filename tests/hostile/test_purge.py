"""`refold tenants purge` leaves no byte of a tenant, whether a gateway runs or not."""

import asyncio
import json
import socket
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

import aiohttp
import pytest

from gateway.state.news import StateNews
from gateway.store.keys import make_tag
from gateway.store.memory import MemoryStore
from gateway.store.redis.address import parse_address
from gateway.store.redis.store import RedisStore
from gateway.store.stores import Stores
from tests.hostile.process import ProcessGateway, run_command, running_process, serving
from tests.store.redis.servers import key, two_processes
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.redis_server import RedisServer, requires_redis, running_redis
from tests.toy.reply import Reply
from tests.toy.running import ask, wait_until
from tests.toy.upstream import ToyUpstream

_TENANTS: Final = "tenants: [{name: acme, keys: [sk-acme]}, {name: bolt, keys: [sk-bolt]}]\n"
_WORD: Final = "canary-of-%s-7461"


def make_history(tenant: str, turns: int) -> list[dict[str, str]]:
    """Each message holds the tenant's canary, also in what is quoted of it."""
    word = _WORD % tenant
    messages = [{"role": "user", "content": f"Build {word}.py for {word}."}]
    for at in range(turns):
        messages.append({"role": "assistant", "content": f"Step {at} of {word} is done."})
        messages.append({"role": "user", "content": f"{word} " * 120})
    return messages


@dataclass
class Office:
    """Two tenants with equal histories, but for their canaries."""

    toy: ToyUpstream
    gateway: ProcessGateway
    folder: Path

    async def talk(self, tenant: str) -> None:
        headers = {"Authorization": f"Bearer sk-{tenant}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            for turns in (10, 11):
                body = json.dumps({"model": "toy-model", "messages": make_history(tenant, turns)}).encode()
                answer = await ask(client, f"{self.gateway.base_url}/chat/completions", body)
                assert answer.is_whole and answer.header("x-gateway-plan") == "pivot"
            named = json.dumps({"model": "toy-model", "input": _WORD % tenant, "store": True}).encode()
            answer = await ask(client, f"{self.gateway.base_url}/responses", named)
            assert answer.status == 200

    async def purge(self, *options: str) -> "CompletedProcess[str]":
        config = str(self.folder / "gateway.yaml")
        return await asyncio.to_thread(
            run_command, "tenants", "purge", "acme", "--config", config, *options, cwd=self.folder
        )


@asynccontextmanager
async def open_office(folder: Path, workers: int = 1) -> AsyncIterator[Office]:
    admin = f"admin: {{port: {find_free_port()}}}\n"
    async with ToyUpstream(window=8_000) as toy:
        toy.reply = lambda _: Reply(text="Done.")
        settings = make_settings(toy, store=f"disk:{folder}/state", more=_TENANTS + admin)
        path = folder / "gateway.yaml"
        await asyncio.to_thread(path.write_text, settings)
        options = ("--config", str(path), "--workers", str(workers))
        async with serving(*options, folder=folder) as gateway:
            yield Office(toy, gateway, folder)


def find_free_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def list_words(tenant: str) -> Iterator[tuple[str, bytes]]:
    """The canary as the records hold it, each with its form. Base64 begins at one of three places."""
    word = (_WORD % tenant).encode()
    yield from (("text", word), ("owner", f"tenant:{tenant}".encode()))
    yield "key", make_tag(f"tenant:{tenant}").encode()
    for at in range(3):
        yield "base64", b64encode(b" " * at + word)[4:-4]
    for message in make_history(tenant, 2):
        yield "compressed", zlib.compress(json.dumps(message).encode())[:60]


def find_traces(folder: Path, tenant: str) -> set[str]:
    """The forms in which the files of the store hold something of a tenant."""
    return find_forms(tenant, [path.read_bytes() for path in (folder / "state").rglob("*") if path.is_file()])


def find_forms(tenant: str, contents: Sequence[bytes]) -> set[str]:
    return {kind for kind, word in list_words(tenant) if any(word in content for content in contents)}


_ALL_FORMS: Final = {"text", "owner", "key", "base64", "compressed"}


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_running_gateway_forgets_a_tenant_and_leaves_no_byte_of_it(
    tmp_path: Path, workers: int
) -> None:
    async with open_office(tmp_path, workers) as office:
        for tenant in ("acme", "bolt"):
            await office.talk(tenant)
        await wait_until(lambda: find_traces(tmp_path, "acme") == _ALL_FORMS)
        summaries = len(office.toy.summaries)
        done = await office.purge("--yes")
        assert (done.returncode, done.stderr.partition(" of acme")[0]) == (0, "deleted"), done.stderr
        # Longer than anything waits to be written.
        await asyncio.sleep(3)
        assert find_traces(tmp_path, "acme") == set()
        assert await office.gateway.stop() == 0
        assert find_traces(tmp_path, "acme") == set()
        assert find_traces(tmp_path, "bolt") == _ALL_FORMS
        assert "Traceback" not in office.gateway.log
        await office.gateway.start()
        await office.talk("bolt")
        assert len(office.toy.summaries) == summaries
        await office.talk("acme")
        assert len(office.toy.summaries) == summaries * 3 // 2


async def test_without_a_gateway_the_command_deletes_by_itself(tmp_path: Path) -> None:
    async with open_office(tmp_path) as office:
        for tenant in ("acme", "bolt"):
            await office.talk(tenant)
        await office.gateway.stop()
        assert find_traces(tmp_path, "acme") == _ALL_FORMS
        aside = tmp_path / "state.damaged-20260101T000000Z"
        aside.mkdir()
        (aside / "cache.db").write_bytes((_WORD % "acme").encode())
        done = await office.purge("--yes")
        assert done.returncode == 0, done.stderr
        assert find_traces(tmp_path, "acme") == set()
        assert find_traces(tmp_path, "bolt") == _ALL_FORMS
        assert not aside.exists()
        again = await office.purge("--yes")
        assert "deleted of acme: 0 records" in again.stderr


async def test_nothing_is_deleted_where_nobody_can_be_asked(tmp_path: Path) -> None:
    async with open_office(tmp_path) as office:
        await office.talk("acme")
        await office.gateway.stop()
        done = await office.purge()
        assert (done.returncode, done.stderr) == (1, "gateway: nothing was deleted\n")
        assert find_traces(tmp_path, "acme") == _ALL_FORMS


async def test_a_gateway_whose_admin_port_is_elsewhere_is_not_overruled(tmp_path: Path) -> None:
    async with open_office(tmp_path) as office:
        await office.talk("acme")
        done = await office.purge("--yes", "--admin-port", str(find_free_port()))
        assert done.returncode == 1
        assert "no gateway answers at the admin port" in done.stderr


async def wait_for_record(store: RedisStore, owner: str, *, is_there: bool) -> None:
    async with asyncio.timeout(30):
        while (await store.read(key("pivot", 1, owner)) is not None) != is_there:
            await asyncio.sleep(0.01)


@requires_redis
async def test_what_redis_refused_before_a_purge_is_not_written_after_it() -> None:
    tag = make_tag("tenant:acme")
    async with two_processes() as setting, ToyUpstream() as toy:
        main = RedisStore(parse_address(setting.server.patient_url))
        stores = Stores(main=main, originals=MemoryStore(), named=MemoryStore())
        async with running_gateway(make_settings(toy), stores=stores):
            await setting.server.run("CONFIG", "SET", "maxmemory", "1")
            for owner in ("tenant:acme", "tenant:bolt"):
                await main.write_durably(key("pivot", 1, owner), b"x", keep_seconds=60)
            StateNews(setting.far.news).announce_purge(tag)
            await wait_for_record(main, "tenant:acme", is_there=False)
            await setting.server.run("CONFIG", "SET", "maxmemory", "0")
            await wait_for_record(setting.far, "tenant:bolt", is_there=True)
            assert not [name for name in await setting.server.list_keys() if tag in name]


@requires_redis
async def test_replicas_on_redis_forget_a_tenant_and_leave_no_byte_of_it_there(tmp_path: Path) -> None:
    async with (
        ToyUpstream(window=8_000) as toy,
        running_redis(options={"rdbcompression": "no"}) as redis,
        open_replica(tmp_path / "a", toy, redis) as first,
        open_replica(tmp_path / "b", toy, redis) as second,
    ):
        for tenant in ("acme", "bolt"):
            await first.talk(tenant)
            await second.talk(tenant)
        assert find_forms("acme", [await dump(redis)]) >= {"text", "owner", "key"}
        done = await second.purge("--yes")
        assert done.returncode == 0, done.stderr
        assert find_forms("acme", [await dump(redis)]) == set()
        assert find_forms("bolt", [await dump(redis)]) >= {"text", "owner", "key"}
        summaries = len(toy.summaries)
        await first.talk("bolt")
        assert len(toy.summaries) == summaries
        await second.talk("acme")
        assert len(toy.summaries) > summaries
        for office in (first, second):
            assert await office.gateway.stop() == 0
            assert "Traceback" not in office.gateway.log


@asynccontextmanager
async def open_replica(folder: Path, toy: ToyUpstream, redis: RedisServer) -> AsyncIterator[Office]:
    await asyncio.to_thread(folder.mkdir)
    toy.reply = lambda _: Reply(text="Done.")
    async with running_process(make_settings(toy, store=redis.patient_url, more=_TENANTS), folder) as gateway:
        yield Office(toy, gateway, folder)


async def dump(redis: RedisServer) -> bytes:
    """All that the server holds, as it saves it."""
    await redis.run("SAVE")
    return await asyncio.to_thread((redis.folder / "dump.rdb").read_bytes)
