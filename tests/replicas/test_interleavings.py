"""Two tenants with equal histories over two replicas, with restarts and cancellations, in drawn orders.

No word of one tenant's summaries is in anything that is sent for the other, and every pivot belongs to the
tenant that its key is of.
"""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx2 as httpx
import pytest
from aiohttp import hdrs

from gateway.core.history.pivot import Pivot
from gateway.state.records import parse_record
from gateway.store.keys import find_tag, make_tag
from tests.builders.downstream import open_line, settle
from tests.builders.pipeline import Pipeline, make_request_head, render_post, running_pipeline
from tests.covering import choose
from tests.toy.replicas import ToyServers
from tests.toy.shared_store import SharedStore

_SETTINGS = """
store: "memory:"
upstreams: {default: {base_url: "http://127.0.0.1:1/v1", discover: false}}
models: [{match: "toy", context: 4000}]
policies: {default: {estimator: chars, commands: true}}
"""
_REPLICAS = 2
_FIRST_TURNS, _LAST_TURNS = 6, 14
_CANARY = re.compile(rb"canary-(sk-[0-9]+-[ab])\.")
_KEY = re.compile(rb"Bearer (sk-[0-9]+-[ab])")
# So many are drawn for each world. What earlier ones left behind must not reach later ones, either.
_IN_ONE_WORLD = 100


def make_body(turns: int) -> bytes:
    """The same for both tenants."""
    messages = [{"role": "user", "content": "Fix it."}]
    for at in range(turns):
        messages += [
            {"role": "assistant", "content": f"Step {at} is done."},
            {"role": "user", "content": f"{at} abcdefg " * 110},
        ]
    return json.dumps({"model": "toy", "messages": messages}).encode()


_BODIES = [make_body(turns) for turns in range(_LAST_TURNS + 1)]


async def summarize(request: httpx.Request) -> httpx.Response:
    """The summary names the key that it was asked for with."""
    await asyncio.sleep(0)
    key = request.headers[hdrs.AUTHORIZATION].removeprefix("Bearer ")
    text = f"We looked at it and fixed it for canary-{key}. Nothing else is open."
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    content = json.dumps({"choices": [choice]}).encode()
    return httpx.Response(200, headers={"Content-Type": "application/json"}, stream=httpx.ByteStream(content))


class Replica:
    """Can be stopped and started again over the same store."""

    def __init__(self, servers: ToyServers) -> None:
        self._servers = servers
        self._exits = AsyncExitStack()
        # What the instances before this one have sent.
        self._sent: list[tuple[bytes, bytes]] = []
        # The requests that it serves. Not set while it is started anew.
        self.serving: set[asyncio.Task[None]] = set()
        self.is_ready = asyncio.Event()
        self.pipeline: Pipeline
        self.store: SharedStore

    async def start(self) -> None:
        stores = self._servers.connect()
        assert isinstance(stores.main, SharedStore)
        self.store = stores.main
        client = httpx.AsyncClient(transport=httpx.MockTransport(summarize))
        running = running_pipeline(_SETTINGS, stores, client)
        self.pipeline = await self._exits.enter_async_context(running)
        self.is_ready.set()

    async def stop(self) -> None:
        """In the middle of whatever it does. As a server that ends, it hangs up first."""
        self.is_ready.clear()
        for task in self.serving:
            task.cancel()
        if self.serving:
            await asyncio.wait(self.serving)
        self._sent = self.list_sent()
        self._servers.main.connections.remove(self.store)
        await self._exits.aclose()

    def list_sent(self) -> list[tuple[bytes, bytes]]:
        """Key and body of each request that went upstream."""
        calls = [exchange.call for exchange in self.pipeline.relay.exchanges]
        return self._sent + [
            (call.head.headers[hdrs.AUTHORIZATION].encode(), call.body)
            for call in calls
            if isinstance(call.body, bytes)
        ]


@dataclass
class World:
    servers: ToyServers
    replicas: list[Replica] = field(default_factory=list)

    async def settle(self) -> None:
        while not all(replica.pipeline.compactor.is_idle for replica in self.replicas):
            await asyncio.sleep(0)
        await settle()


@asynccontextmanager
async def running_world(rng: random.Random) -> AsyncIterator[World]:
    async def pause() -> None:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)

    world = World(ToyServers())
    world.servers.main.pause = pause
    for _ in range(_REPLICAS):
        world.replicas.append(Replica(world.servers))
        await world.replicas[-1].start()
    try:
        yield world
    finally:
        await world.settle()
        for replica in world.replicas:
            await replica.stop()


async def ask(replica: Replica, key: str, turns: int) -> None:
    post = render_post(_BODIES[turns]).replace(b"sk-toy", key.encode())
    async with open_line(replica.pipeline.proxy.respond) as line:
        await line.send(post)
        while not line.written and not line.is_closed:
            await asyncio.sleep(0)


async def play_client(world: World, rng: random.Random, key: str) -> None:
    """Goes on turn by turn, now and then again with the same, and hangs up at any moment."""
    turns = rng.randrange(_FIRST_TURNS, _LAST_TURNS - 3)
    for _ in range(rng.randrange(3, 6)):
        replica = rng.choice(world.replicas)
        await replica.is_ready.wait()
        asking = asyncio.create_task(ask(replica, key, turns))
        replica.serving.add(asking)
        asking.add_done_callback(replica.serving.discard)
        if rng.random() < 0.25:
            for _ in range(rng.randrange(60)):
                await asyncio.sleep(0)
            asking.cancel()
        await asyncio.wait((asking,))
        turns = min(turns + rng.choice((0, 1, 1, 1)), _LAST_TURNS)


async def disturb(world: World, rng: random.Random) -> None:
    """A replica is started anew, or the store cannot be reached for a moment."""
    replica = rng.choice(world.replicas)
    for _ in range(rng.randrange(200)):
        await asyncio.sleep(0)
    match rng.randrange(10):
        case 0:
            replica.store.cut()
            for _ in range(rng.randrange(100)):
                await asyncio.sleep(0)
            await replica.store.mend()
        case 1:
            replica.store.news.generation += 1
        case 2 | 3:
            await replica.stop()
            for _ in range(rng.randrange(40)):
                await asyncio.sleep(0)
            await replica.start()


async def play(world: World, rng: random.Random, number: int) -> None:
    keys = [f"sk-{number}-{name}" for name in "ab"]
    clients = [play_client(world, rng, key) for key in keys]
    await asyncio.gather(*clients, disturb(world, rng))
    await world.settle()
    if rng.random() < 0.15:
        replica = rng.choice(world.replicas)
        await replica.stop()
        await replica.start()
        await asyncio.gather(*(play_client(world, rng, key) for key in keys))
        await world.settle()


def find_crossings(world: World) -> list[tuple[bytes, bytes]]:
    """Of what was sent: the key, and the canary of another one in its body."""
    return [
        (key, canary)
        for replica in world.replicas
        for authorization, body in replica.list_sent()
        for key in _KEY.findall(authorization)
        for canary in _CANARY.findall(body)
        if canary != key
    ]


def count_pivots(world: World, owners: dict[str, str]) -> int:
    """All in the store. Fails for one that is not its owner's. owners: ids of tenants by their tags."""
    count = 0
    for key, record in world.servers.main.records.items():
        if not key.startswith("pivot:"):
            continue
        tag = find_tag(key)
        assert tag is not None
        pivot = parse_record(Pivot, owners[tag], record.value)
        assert pivot is not None and make_tag(pivot.owner) == tag and key.endswith(pivot.key)
        count += 1
    return count


async def play_world(seed: int, count: int) -> None:
    rng = random.Random(seed)
    async with running_world(rng) as world:
        for number in range(count):
            await play(world, rng, number)
        admission = world.replicas[0].pipeline.proxy.admission
        keys = [f"sk-{number}-{name}" for number in range(count) for name in "ab"]
        tenants = [admission.admit(make_request_head(key=key)).tenant.id for key in keys]
        owners = {make_tag(tenant): tenant for tenant in tenants}
        assert find_crossings(world) == []
        sent = [body for replica in world.replicas for _, body in replica.list_sent()]
        # Otherwise nothing is shown: requests went out with summaries.
        assert count_pivots(world, owners) >= count // 2
        assert sum(bool(_CANARY.search(body)) for body in sent) >= count


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", choose([1, 2], [0]))
async def test_no_word_of_a_tenant_reaches_the_other_in_any_order(seed: int) -> None:
    await play_world(seed, _IN_ONE_WORLD)


@pytest.mark.exhaustive
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(100, 200))
async def test_no_word_crosses_in_ten_thousand_orders(seed: int) -> None:
    await play_world(seed, _IN_ONE_WORLD)
