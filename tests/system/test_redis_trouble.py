"""A real Redis in every kind of trouble under two real gateways: traffic goes on, and the logs say so once.

Server, gateways and traffic are those of all tests here. Each test leaves them as it found them.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
import pytest_asyncio

from tests.toy.agent import Session, Shape, make_session
from tests.toy.house import make_settings
from tests.toy.product import Process, serve_process
from tests.toy.redis_server import RedisServer, requires_redis, running_redis
from tests.toy.running import Answer, ask, wait_until
from tests.toy.slow_proxy import SlowProxy, running_proxy
from tests.toy.upstream import ToyUpstream

pytestmark = [requires_redis, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]

_SHAPE = Shape(max_tokens=1_000, stream=True)
_TURNS, _TURN_TOKENS, _CONVERSATIONS = 40, 700, 4
# Between two turns, as an agent has its tools: otherwise the machine is only busy with the load.
_PAUSE_SECONDS = 0.02
# As many requests before the trouble as let the first summaries be made, and as show that it is over.
_BEFORE, _AFTER = 100, 40
_LINE = re.compile(r"^\S+ \S+ (?:INFO|WARNING|ERROR) gateway\.store\.redis store \S+ (.*)$", re.MULTILINE)
AWAY, BACK, LOST = "is away", "is back", "has lost its records"
REFUSED, TAKEN = "takes no writes", "takes writes again"
ABSENT = "counts as absent"
_KNOWN = (AWAY, BACK, LOST, REFUSED, TAKEN, ABSENT)


@dataclass
class Load:
    """Conversations that go on and on, each turn through a gateway drawn by chance."""

    addresses: Sequence[str]
    answers: list[Answer] = field(default_factory=list)
    is_over: bool = False

    async def wait_for(self, count: int) -> None:
        """Returns after so many further requests."""
        wanted = len(self.answers) + count
        await wait_until(lambda: len(self.answers) >= wanted, 120)

    async def run(self, number: int) -> None:
        """One conversation after the other, until the load is over."""
        rng, seed = random.Random(number), number
        headers = {"Authorization": "Bearer sk-toy", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as client:
            while not self.is_over:
                await self._play(client, make_session(_TURNS, seed, "one_user", _TURN_TOKENS), rng)
                seed += _CONVERSATIONS

    async def _play(self, client: aiohttp.ClientSession, session: Session, rng: random.Random) -> None:
        for turn in range(_TURNS):
            if self.is_over:
                return
            url = f"{rng.choice(self.addresses)}/chat/completions"
            self.answers.append(await _ask(client, url, session.request(turn, _SHAPE)))
            await asyncio.sleep(_PAUSE_SECONDS)


async def _ask(client: aiohttp.ClientSession, url: str, body: bytes) -> Answer:
    try:
        return await ask(client, url, body)
    except aiohttp.ClientError as error:
        return Answer(status=0, headers=(), body=b"", seconds=0.0, broken=repr(error))


@asynccontextmanager
async def running_load(addresses: Sequence[str]) -> AsyncIterator[Load]:
    load = Load(addresses)
    async with asyncio.TaskGroup() as group:
        for number in range(_CONVERSATIONS):
            group.create_task(load.run(number))
        try:
            yield load
        finally:
            load.is_over = True


@dataclass
class Site:
    """The gateways reach the server through the proxy, and wait for it no longer than by default.

    load: since the begin of the test, and so are the lines of the logs.
    """

    redis: RedisServer
    proxy: SlowProxy
    gateways: Sequence[Process]
    load: Load = field(default_factory=lambda: Load(()))
    _begins: Sequence[int] = ()

    def begin(self, load: Load) -> None:
        self.load, self._begins = load, [len(gateway.log) for gateway in self.gateways]

    def read_logs(self) -> list[str]:
        """What each gateway has said since the begin of the test."""
        begins = self._begins or [0] * len(self.gateways)
        return [gateway.log[begin:] for gateway, begin in zip(self.gateways, begins, strict=True)]

    async def wait_for(self, state: str, before: str) -> None:
        """Until this is the newest of the two states in the logs of both gateways."""
        states = (state, before)
        await wait_until(lambda: all(find_lines(log, states)[-1:] == [state] for log in self.read_logs()), 60)

    async def finish(self, states: tuple[str, str] = (BACK, AWAY)) -> None:
        """The trouble is over: traffic goes on as before."""
        await self.wait_for(*states)
        await self.load.wait_for(_AFTER)
        self.check_calm()

    def count(self, line: str) -> list[int]:
        return [len(find_lines(log, (line,))) for log in self.read_logs()]

    def check_calm(self) -> None:
        """No request has failed. The logs hold one line for each change, and nothing to act on.

        On a busy machine the server may seem away for a moment at any time, so there may be more changes.
        """
        failed = [
            (each.status, each.broken, each.body[-300:]) for each in self.load.answers if not each.is_whole
        ]
        assert failed == [] and self.load.answers
        for log in self.read_logs():
            assert "Traceback" not in log
            assert " ERROR " not in log, log
            for states in ((AWAY, BACK), (REFUSED, TAKEN)):
                lines = find_lines(log, states)
                assert all(line == states[at % 2] for at, line in enumerate(lines)), lines

    async def list_records(self) -> list[str]:
        """The keys of everything that was stored as a text."""
        keys = await self.redis.list_keys()
        types = await self.redis.run_all([("TYPE", key) for key in keys])
        pairs = zip(keys, types, strict=True)
        found = [key for key, kind in pairs if kind == b"string" and "epoch" not in key]
        assert found
        return found


def find_lines(log: str, wanted: Sequence[str]) -> list[str]:
    """What a log says of the store, as far as it is one of these."""
    said = [next((known for known in _KNOWN if known in line), "") for line in _LINE.findall(log)]
    return [line for line in said if line in wanted]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    async with (
        running_redis() as redis,
        running_proxy(redis.port) as proxy,
        ToyUpstream(window=16_000) as toy,
    ):
        settings = make_settings(toy, store=f"redis://127.0.0.1:{proxy.port}/0")
        async with serve_process(settings, folders[0]) as one, serve_process(settings, folders[1]) as two:
            yield Site(redis, proxy, (one, two))


@pytest_asyncio.fixture(loop_scope="module")
async def site(shared_site: Site) -> AsyncIterator[Site]:
    """Under load, with so many requests behind it that there are summaries."""
    await wait_until(
        lambda: all(find_lines(each.log, (BACK, AWAY))[-1:] != [AWAY] for each in shared_site.gateways), 60
    )
    async with running_load([gateway.base_url for gateway in shared_site.gateways]) as load:
        shared_site.begin(load)
        await load.wait_for(_BEFORE)
        yield shared_site


@pytest.mark.parametrize("requests", [_AFTER, pytest.param(1_000, marks=pytest.mark.exhaustive)])
async def test_no_request_fails_while_redis_is_stopped_and_starts_again_empty(
    site: Site, requests: int
) -> None:
    await site.redis.kill()
    await site.wait_for(AWAY, BACK)
    await site.load.wait_for(requests)
    await site.redis.start()
    await site.finish()
    assert site.count(LOST) == [1, 1]
    # What is in use has been written again.
    assert [key for key in await site.redis.list_keys() if ":head:" in key]


async def test_no_request_fails_while_every_reply_is_late(site: Site) -> None:
    site.proxy.delay_seconds = 0.3
    await site.wait_for(AWAY, BACK)
    await site.load.wait_for(_AFTER)
    site.proxy.delay_seconds = 0.0
    await site.finish()


@pytest.mark.parametrize(
    "way", ["stalled sockets", pytest.param("stopped process", marks=pytest.mark.exhaustive)]
)
async def test_no_request_fails_while_open_connections_are_silent(site: Site, way: str) -> None:
    if way == "stalled sockets":
        site.proxy.stall()
    else:
        site.redis.pause()
    await site.wait_for(AWAY, BACK)
    await site.load.wait_for(_AFTER)
    if way == "stalled sockets":
        site.proxy.delay_seconds = 0.0
        await site.proxy.cut()
    else:
        site.redis.resume()
    await site.finish()


async def test_no_request_fails_while_redis_is_full(site: Site) -> None:
    await site.redis.run("CONFIG", "SET", "maxmemory", "1")
    await site.wait_for(REFUSED, TAKEN)
    await site.load.wait_for(_AFTER)
    await site.redis.run("CONFIG", "SET", "maxmemory", "0")
    await site.finish((TAKEN, REFUSED))


@pytest.mark.parametrize("value", ["of another type", "of another version"])
async def test_what_is_not_ours_under_our_keys_counts_as_absent(site: Site, value: str) -> None:
    keys = await site.list_records()
    commands: list[tuple[str | bytes, ...]] = []
    for key in keys:
        if value == "of another type":
            commands += [("DEL", key), ("RPUSH", key, "not ours")]
        else:
            commands += [("SET", key, b'{"version": 99}', "KEEPTTL")]
    # In one go: the gateways go on writing.
    await site.redis.run_all(commands)
    await site.load.wait_for(_AFTER * 2)
    site.check_calm()
    assert max(site.count(ABSENT)) <= 1
    # What nobody has read by now would be told of in the next test.
    types = await site.redis.run_all([("TYPE", key) for key in keys])
    left = [("DEL", key) for key, kind in zip(keys, types, strict=True) if kind == b"list"]
    await site.redis.run_all([*left, ("PING",)])


async def test_no_request_fails_in_a_failover_to_a_replica(site: Site) -> None:
    """The address stays the same, as a virtual address or a managed Redis has it."""
    async with running_redis() as replica:
        await replica.run("REPLICAOF", "127.0.0.1", site.redis.port)
        await wait_for_replica(replica)
        await site.redis.kill()
        await site.proxy.refuse()
        await site.wait_for(AWAY, BACK)
        await site.load.wait_for(_AFTER)
        await replica.run("REPLICAOF", "NO", "ONE")
        site.proxy.lead_to("127.0.0.1", replica.port)
        await site.proxy.start()
        await site.finish()
        assert site.count(LOST) == [0, 0]
        await return_home(site)


async def test_no_request_fails_while_the_primary_has_become_a_replica(site: Site) -> None:
    """The connections stay open, and every write is refused, until the address leads to the new primary."""
    async with running_redis() as other:
        await other.run("REPLICAOF", "127.0.0.1", site.redis.port)
        await wait_for_replica(other)
        await other.run("REPLICAOF", "NO", "ONE")
        await site.redis.run("REPLICAOF", "127.0.0.1", other.port)
        await site.wait_for(AWAY, BACK)
        await site.load.wait_for(_AFTER)
        site.proxy.lead_to("127.0.0.1", other.port)
        await site.proxy.cut()
        await site.finish()
        await site.redis.run("REPLICAOF", "NO", "ONE")
        await return_home(site)


async def return_home(site: Site) -> None:
    """To the first server, which may have been killed and lost what it held."""
    site.proxy.lead_to("127.0.0.1", site.redis.port)
    await site.proxy.refuse()
    await site.wait_for(AWAY, BACK)
    await site.redis.kill()
    await site.redis.start()
    await site.proxy.start()
    await site.finish()


async def wait_for_replica(replica: RedisServer) -> None:
    async with asyncio.timeout(60):
        while True:
            info = await replica.run("INFO", "replication")
            assert isinstance(info, bytes)
            if b"master_link_status:up" in info and b"master_sync_in_progress:0" in info:
                return
            await asyncio.sleep(0.05)
