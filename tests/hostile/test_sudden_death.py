"""kill -9 right after a response: what changed the prefix stays in use, whatever else is lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import aiohttp
import pytest

from tests.conftest import STORES
from tests.covering import choose_rows, cover_product
from tests.hostile.process import ProcessGateway, running_process
from tests.toy.agent import Session, make_session
from tests.toy.gateway import make_settings
from tests.toy.running import Answer, ask, wait_until
from tests.toy.upstream import ToyUpstream

# The store writes after half a second, heads are handed to it after two: before, between, and nearly after.
PAUSES = (0.0, 0.3, 0.8, 1.6)
# By the plan that changes the prefix.
POLICIES = {
    "pivot": "compaction: {prune: false}",
    "pruned": "pruning: {protect_tokens: 1000, minimum_tokens: 500}",
}
TURNS = 60


@lru_cache
def load_session() -> Session:
    return make_session(TURNS, 3, "one_user", 600)


@dataclass
class Talk:
    toy: ToyUpstream
    gateway: ProcessGateway
    session: Session
    turn: int = 0

    async def say(self) -> Answer:
        """The next request of the conversation."""
        self.turn += 1
        turn, toy = self.turn, self.toy
        toy.reply = lambda _: self.session.reply(turn)
        return await self._send(self.session.request(turn))

    async def compact(self) -> Answer:
        """The newest request once more, with a command behind it."""
        body = json.loads(self.session.request(self.turn))
        body["messages"].append({"role": "user", "content": "/compact"})
        return await self._send(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())

    async def _send(self, body: bytes) -> Answer:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer sk-toy"}) as client:
            return await ask(client, f"{self.gateway.base_url}/chat/completions", body)

    async def say_until(self, plan: str) -> Answer:
        """Requests up to the first one with this plan, whose upstream prefix is new."""
        while self.turn < TURNS - 2:
            answer = await self.say()
            if answer.header("x-gateway-plan") == plan:
                return answer
            # A summary in the background comes before the next request, as it does with slow models.
            await asyncio.sleep(0.05)
            await wait_until(lambda: all(seen.finished for seen in self.toy.summaries), 5)
        raise AssertionError(f"no request had the plan {plan}")

    async def die(self, pause: float) -> None:
        await asyncio.sleep(pause)
        await self.gateway.kill()
        await self.gateway.start()


@asynccontextmanager
async def talking(folder: Path, store: str, bias: float, policy: str) -> AsyncIterator[Talk]:
    """bias: how many tokens more than we count the upstream counts. After a restart that is unknown."""
    async with ToyUpstream(window=16_000, bias=bias) as toy:
        more = f"policies: {{default: {{{policy}}}}}\n"
        settings = make_settings(toy, store=store, more=more)
        async with running_process(settings, folder) as gateway:
            yield Talk(toy, gateway, load_session())


def shared_start(first: bytes, second: bytes) -> int:
    """How many bytes two bodies begin with in common."""
    size = min(len(first), len(second))
    return next((at for at in range(size) if first[at] != second[at]), size)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("store_url", "plan", "pause"),
    # Each of these starts two gateways.
    cover_product(STORES, tuple(POLICIES), PAUSES, strength=1),
    indirect=["store_url"],
)
async def test_what_changes_the_prefix_survives_the_death_after_its_first_use(
    tmp_path: Path, store_url: str, plan: str, pause: float
) -> None:
    async with talking(tmp_path, store_url, 1.4, POLICIES[plan]) as talk:
        await talk.say_until(plan)
        await talk.die(pause)
        answer = await talk.say()
        assert answer.header("x-gateway-plan") == plan
        before, after = talk.toy.chats[-2:]
        # All but the closing of the array and the fields behind it.
        tools = before.body.index(b'],"tools"')
        assert shared_start(before.body, after.body) >= tools


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("store_url", "pause"),
    # The shortest pause on disk, and the longest on Redis.
    choose_rows(list(product(STORES, PAUSES)), [0, 7]),
    indirect=["store_url"],
)
async def test_a_compaction_by_hand_survives_the_death_after_its_first_use(
    tmp_path: Path, store_url: str, pause: float
) -> None:
    """It applies far below the thresholds, where nothing but its head says so."""
    async with talking(tmp_path, store_url, 1.0, "commands: true") as talk:
        for _ in range(8):
            await talk.say()
        assert (await talk.compact()).status == 200
        assert (await talk.say()).header("x-gateway-plan") == "pivot"
        await talk.die(pause)
        assert (await talk.say()).header("x-gateway-plan") == "pivot"
        before, after = talk.toy.chats[-2:]
        assert shared_start(before.body, after.body) >= before.body.index(b'],"tools"')


async def test_a_compaction_by_hand_survives_the_death_after_its_response(
    tmp_path: Path, store_url: str
) -> None:
    async with talking(tmp_path, store_url, 1.0, "commands: true") as talk:
        for _ in range(8):
            await talk.say()
        assert (await talk.compact()).status == 200
        await talk.die(0.0)
        assert (await talk.say()).header("x-gateway-plan") == "pivot"
