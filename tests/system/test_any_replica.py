"""Turns of one conversation go to any of several gateways on one Redis: that costs no more than with one, and
in no order of events does a word of one tenant reach another.
"""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp
import pytest

from tests.toy.agent import Message, Session, Shape, Trim, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect, Request
from tests.toy.economics import prefix_breaks, prefix_reuse
from tests.toy.house import make_settings
from tests.toy.messages import MESSAGES
from tests.toy.product import Product, serve
from tests.toy.redis_server import RedisServer, requires_redis
from tests.toy.reply import Reply
from tests.toy.responses import RESPONSES
from tests.toy.running import Pace, Run, run_session
from tests.toy.trimming import drop_oldest_results, keep_first_and_newest
from tests.toy.upstream import ToyUpstream

pytestmark = [requires_redis, pytest.mark.timeout(600)]

# Where several processes serve a client that trims its history, it has to name its session.
_LABEL = {"x-gateway-session": "toy"}
_CLEARED = "[Old tool result content cleared]"


def clear_old_results(kept: int) -> Trim:
    """As opencode does: all results but the newest ones become a placeholder."""

    def trim(history: list[Message]) -> list[Message]:
        results = [at for at, message in enumerate(history) if message["role"] == "tool"]
        cleared = set(results[: max(len(results) - kept, 0) // kept * kept])
        return [
            {**message, "content": _CLEARED} if at in cleared else message
            for at, message in enumerate(history)
        ]

    return trim


@dataclass(frozen=True)
class Group:
    """Gateways that share a store."""

    toy: ToyUpstream
    products: Sequence[Product]

    async def at_rest(self) -> None:
        for product in self.products:
            await product.at_rest()

    async def play(self, session: Session, shape: Shape, rng: random.Random) -> Run:
        """Each turn goes to a replica drawn by chance, after all work for the one before is done."""
        runs = list[Run]()
        for turn in range(len(session)):
            since = runs[-1].since if runs else None
            pace = Pace(first=turn, last=turn + 1, since=since, headers=_LABEL)
            runs.append(await run_session(session, rng.choice(self.products).base_url, self.toy, shape, pace))
            await self.at_rest()
        return Run(
            answers=tuple(answer for run in runs for answer in run.answers),
            seen=tuple(self.toy.requests),
            replays=tuple(code for run in runs for code in run.replays),
        )


@asynccontextmanager
async def running_group(toy: ToyUpstream, count: int, store: str) -> AsyncIterator[Group]:
    async with AsyncExitStack() as exits:
        settings = make_settings(toy, store=store, more="admin: {port: 0}\n")
        yield Group(toy, [await exits.enter_async_context(serve(settings)) for _ in range(count)])


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    dialect: Dialect = CHAT
    trim: Trim | None = None
    turn_tokens: int = 750

    def __str__(self) -> str:
        return self.name


CASES = (
    Case(name="chat"),
    Case(name="messages", dialect=MESSAGES),
    Case(name="responses", dialect=RESPONSES),
    Case(name="first and newest 80", trim=keep_first_and_newest(80), turn_tokens=1_100),
    Case(
        name="without the oldest results",
        trim=drop_oldest_results(28_000, keeps_texts=False),
        turn_tokens=1_100,
    ),
    Case(name="cleared results", trim=clear_old_results(20), turn_tokens=1_100),
)


@dataclass(frozen=True)
class Cost:
    summaries: int
    reuse: float
    breaks: int


async def measure(case: Case, replicas: int, store: str) -> Cost:
    session = replace(make_session(60, 60, "one_user", case.turn_tokens), trim=case.trim)
    shape = Shape(max_tokens=1_000, dialect=case.dialect)
    async with ToyUpstream(window=32_000, bias=1.2) as toy, running_group(toy, replicas, store) as group:
        run = await group.play(session, shape, random.Random(7))
    assert run.failed == [] and run.refusals == [] and run.replays == ()
    bodies = [seen.body for seen in run.outgoing]
    return Cost(len(run.summaries), prefix_reuse(bodies), len(prefix_breaks(bodies)))


@pytest.mark.parametrize(
    ("case", "replicas"),
    [
        pytest.param(case, replicas, marks=() if place % 2 == replicas % 2 else pytest.mark.exhaustive)
        for place, case in enumerate(CASES)
        for replicas in (2, 3)
    ],
    ids=str,
)
async def test_a_replica_drawn_by_chance_costs_no_more_than_one_process(
    empty_redis: RedisServer, case: Case, replicas: int
) -> None:
    shared = await measure(case, replicas, empty_redis.patient_url)
    alone = await measure(case, 1, "memory:")
    assert alone.summaries > 0
    assert shared.summaries <= alone.summaries
    assert shared.reuse >= alone.reuse - 0.005
    assert shared.breaks <= alone.breaks


_CANARY = re.compile(rb"canary-(sk-[0-9]+-[ab])\.")
_KEY = re.compile(r"Bearer (sk-[0-9]+-[ab])")
_FIRST_TURNS, _LAST_TURNS = 6, 14


def make_history(turns: int) -> bytes:
    """The same for both tenants."""
    messages = [{"role": "user", "content": "Fix it."}]
    for at in range(turns):
        messages += [
            {"role": "assistant", "content": f"Step {at} is done."},
            {"role": "user", "content": f"{at} abcdefg " * 110},
        ]
    return json.dumps({"model": "toy-model", "messages": messages}).encode()


_HISTORIES = [make_history(turns) for turns in range(_LAST_TURNS + 1)]


@dataclass
class World:
    """Two gateways on one Redis, each of which may be ended and started anew at any moment."""

    toy: ToyUpstream
    settings: str
    redis: RedisServer
    rng: random.Random
    products: dict[int, Product] = field(default_factory=dict)
    _exits: dict[int, AsyncExitStack] = field(default_factory=dict)

    async def start(self, place: int) -> None:
        self._exits[place] = AsyncExitStack()
        self.products[place] = await self._exits[place].enter_async_context(serve(self.settings))

    async def stop(self, place: int) -> None:
        del self.products[place]
        await self._exits.pop(place).aclose()

    async def disturb(self) -> None:
        """A replica is started anew, the server loses what it holds, or its connections."""
        await self.pause(40)
        match self.rng.randrange(4):
            case 0:
                await self.redis.run("CLIENT", "KILL", "TYPE", "normal")
            case 1:
                await self.redis.run("FLUSHDB")
            case _:
                place = self.rng.randrange(2)
                await self.stop(place)
                await self.pause(10)
                await self.start(place)

    async def pause(self, most: int) -> None:
        """Up to so many thousandths of a second."""
        await asyncio.sleep(self.rng.randrange(most) / 1_000)

    async def play_client(self, key: str) -> None:
        """Goes on turn by turn, now and then again with the same, and hangs up at any moment."""
        turns = self.rng.randrange(_FIRST_TURNS, _LAST_TURNS - 3)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(headers=headers) as client:
            for _ in range(self.rng.randrange(3, 6)):
                product = self.rng.choice(list(self.products.values()))
                asking = asyncio.create_task(self.ask(client, product, turns))
                if self.rng.random() < 0.25:
                    await self.pause(30)
                    asking.cancel()
                await asyncio.wait((asking,))
                turns = min(turns + self.rng.choice((0, 1, 1, 1)), _LAST_TURNS)

    async def ask(self, client: aiohttp.ClientSession, product: Product, turns: int) -> None:
        try:
            async with client.post(
                f"{product.base_url}/chat/completions", data=_HISTORIES[turns]
            ) as response:
                await response.read()
        except aiohttp.ClientError:
            pass  # the replica has ended


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(at, marks=pytest.mark.exhaustive) for at in range(2, 20))]
)
async def test_no_word_of_a_tenant_reaches_the_other_in_any_order(
    empty_redis: RedisServer, seed: int
) -> None:
    """Two tenants say the same, and each of their summaries names the key that it was asked for with."""
    async with ToyUpstream(window=4_000) as toy:
        settings = make_settings(toy, store=empty_redis.patient_url, more="admin: {port: 0}\n")
        world = World(toy, settings, empty_redis, random.Random(seed))
        toy.summary = lambda request: Reply(text=summarize(toy, request))
        await world.start(0)
        await world.start(1)
        for number in range(12):
            clients = [world.play_client(f"sk-{number}-{name}") for name in "ab"]
            await asyncio.gather(*clients, world.disturb())
        for place in (0, 1):
            await world.products[place].at_rest()
            await world.stop(place)
    crossings, carried = [], 0
    for seen in toy.requests:
        own = _KEY.findall(dict(seen.headers).get("Authorization", ""))
        said = [canary.decode() for canary in _CANARY.findall(seen.body)]
        crossings += [(own, canary) for canary in said if canary not in own]
        carried += bool(said)
    assert crossings == []
    # Otherwise nothing is shown: requests went out with summaries.
    assert carried >= 12


def summarize(toy: ToyUpstream, request: Request) -> str:
    """Of the call that has come last; the toy answers it at once."""
    newest = toy.summaries[-1]
    (key,) = _KEY.findall(dict(newest.headers)["Authorization"])
    assert newest.request == request
    return f"We looked at it and fixed it for canary-{key}. Nothing else is open."
