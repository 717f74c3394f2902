"""Many summaries at once: only so many are made, for a tenant and in all, and no one else waits for them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest

from tests.toy.agent import Session, make_session
from tests.toy.delivery import Delivery
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.reply import Reply
from tests.toy.running import Answer, ask, wait_until
from tests.toy.upstream import Seen, ToyUpstream

_BOUNDS = "bounds: {summaries: 3, summaries_per_tenant: 2}\n"
# The hard threshold is 12,000, the soft one 800 tokens below it.
_PAST_SOFT_TOKENS = 11_250
_NO_PRUNING = "compaction: {prune: false}"


@dataclass
class Crowd:
    """Clients of tenants `a`, `b` …, each with a conversation of its own that needs a summary at once."""

    toy: ToyUpstream
    gateway: RunningGateway
    # No summary comes before it is set.
    ready: asyncio.Event
    answers: list["asyncio.Task[Answer]"] = field(default_factory=list)

    def send(self, tenant: str, count: int) -> None:
        for _ in range(count):
            body = _make_long(len(self.answers)).request(40)
            self.answers.append(asyncio.create_task(self.ask(tenant, body)))

    async def ask(self, tenant: str, body: bytes) -> Answer:
        url = f"{self.gateway.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer sk-{tenant}"}) as client:
            return await ask(client, url, body)

    async def fill(self, session: Session) -> None:
        """Requests of a conversation up to one whose answer starts a summary in the background."""
        for turn in range(18, len(session)):
            assert (await self.ask("a", session.request(turn))).is_whole
            if self.toy.chats[-1].prompt_tokens > _PAST_SOFT_TOKENS:
                return

    def count_open(self) -> Counter[str]:
        """Summary calls under way, by tenant."""
        return Counter(_tenant_of(seen) for seen in self.toy.summaries if seen.ended is None)

    async def wait_for_open(self, count: int) -> None:
        await wait_until(lambda: self.count_open().total() == count, 30)


def _make_long(number: int) -> Session:
    return make_session(41, 100 + number, "one_user", 500)


def _tenant_of(seen: Seen) -> str:
    return next(value for name, value in seen.headers if name.lower() == "authorization")[-1]


@asynccontextmanager
async def gathering(policy: str = _NO_PRUNING) -> AsyncIterator[Crowd]:
    ready = asyncio.Event()
    async with ToyUpstream(window=16_000) as toy:
        toy.summary_delivery = Delivery(after=ready)
        toy.reply = lambda _: Reply(text="Noted.")
        more = f"{_BOUNDS}policies: {{default: {{{policy}}}}}\n"
        async with running_gateway(make_settings(toy, more=more)) as gateway:
            crowd = Crowd(toy, gateway, ready)
            try:
                yield crowd
            finally:
                ready.set()
                await asyncio.gather(*crowd.answers)
                await gateway.settle()


async def test_summaries_are_capped_for_one_tenant_and_in_all() -> None:
    most: Counter[str] = Counter()
    async with gathering() as crowd:
        crowd.send("a", 6)
        await crowd.wait_for_open(2)
        crowd.send("b", 4)
        await crowd.wait_for_open(3)
        # Others do not wait for any of it.
        short = make_session(2, 1, "one_user", 50).request(1)
        assert (await crowd.ask("c", short)).is_whole
        assert crowd.count_open() == {"a": 2, "b": 1}
        assert not any(answer.done() for answer in crowd.answers)
        crowd.ready.set()
        while not all(answer.done() for answer in crowd.answers):
            most |= crowd.count_open() | Counter(all=crowd.count_open().total())
            await asyncio.sleep(0)
        answers = [answer.result() for answer in crowd.answers]
    assert most["a"] <= 2 and most["b"] <= 2 and most["all"] <= 3
    assert all(answer.is_whole and answer.header("x-gateway-plan") == "pivot" for answer in answers)


async def test_a_client_whose_turn_does_not_come_in_time_gets_the_digest() -> None:
    async with gathering(f"{_NO_PRUNING}, summary: {{deadline_seconds: 0.5}}") as crowd:
        crowd.send("a", 5)
        answers = await asyncio.gather(*crowd.answers)
        assert crowd.count_open() == {"a": 2}
    assert all(answer.header("x-gateway-plan") == "digest" for answer in answers)
    # The summaries were made later, for the next requests.
    assert len(crowd.toy.summaries) == 5


@pytest.mark.parametrize("tenant", ["a", "b"])
async def test_background_work_leaves_a_place_for_a_client_that_waits(tenant: str) -> None:
    async with gathering() as crowd:
        for number in range(3):
            await crowd.fill(make_session(41, 200 + number, "one_user", 500))
        await crowd.wait_for_open(1)
        crowd.send(tenant, 1)
        await crowd.wait_for_open(2)
        crowd.ready.set()
        assert (await crowd.answers[0]).is_whole
