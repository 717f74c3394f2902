"""Many at once: heavy requests of one tenant take their time, and nobody else waits for them.

The order of answers shows it, as gateway, upstream and clients share one event loop and its machine.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
import pytest_asyncio

from tests.toy.agent import Session, make_session
from tests.toy.delivery import Delivery
from tests.toy.house import make_settings
from tests.toy.product import Product, serve
from tests.toy.raw import connecting, render_answer, render_request, writing
from tests.toy.reply import Reply
from tests.toy.running import Answer, ask, wait_until
from tests.toy.upstream import Seen, ToyUpstream
from tests.toy.wire import WHOLE, Wire, make_chat, opening_wire, render_chat

# Both windows are so small that every request is counted.
_MODELS = "models:\n  - {match: heavy, context: 400000}\n  - {match: light, context: 64000}\n"
_ANSWER = json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}).encode()
_HEALTH = render_request("/healthz", method="GET")
_PROSE = "The parser reads one token at a time and never looks back. "


@pytest_asyncio.fixture
async def wire() -> AsyncIterator[Wire]:
    async with opening_wire(more=_MODELS) as wire:
        wire.upstream.script = writing(render_answer(_ANSWER))
        yield wire


def render_from(tenant: str, body: bytes) -> bytes:
    headers = (("Content-Type", "application/json"), ("Authorization", f"Bearer sk-{tenant}"))
    return render_request(body=body, headers=headers)


def make_heavy(text: str) -> bytes:
    return make_chat(model="heavy", messages=[{"role": "user", "content": text}])


def make_light(number: int) -> bytes:
    """100 KB, so that it needs a thread, too."""
    return make_chat(model="light", messages=[{"role": "user", "content": f"{number} {_PROSE * 1_700}"}])


async def note_order(wire: Wire, heavy: bytes, owner: str) -> list[str]:
    """The order of answers to a heavy request, and to three that begin after it, one after the other."""
    order: list[str] = []

    async def ask_heavy() -> None:
        assert (await wire.ask(render_from("greedy", heavy))).status == 200
        order.append("heavy")

    waiting = asyncio.create_task(ask_heavy())
    # The heavy one is sent and read first.
    await wire.ask(_HEALTH)
    for number in range(3):
        assert (await wire.ask(render_from(owner, make_light(number)))).status == 200
        order.append("light")
    await waiting
    return order


@pytest.mark.parametrize(
    ("unit", "owner"),
    [("a", "modest"), ("a", "greedy"), (" ", "modest"), ("\u0301", "modest")],
    ids=["letter", "own", "blank", "accent"],
)
async def test_no_tenant_waits_for_one_long_text_to_be_counted(wire: Wire, unit: str, owner: str) -> None:
    order = await note_order(wire, make_heavy(unit * 8_000_000), owner)
    assert order == ["light", "light", "light", "heavy"]


async def test_no_tenant_waits_for_the_long_texts_of_many_made_up_keys(wire: Wire) -> None:
    heavy = make_heavy("a" * 8_000_000)
    others = [asyncio.create_task(wire.ask(render_from(f"made-up-{at}", heavy))) for at in range(3)]
    order = await note_order(wire, heavy, "modest")
    assert order == ["light", "light", "light", "heavy"]
    assert [got.status for got in await asyncio.gather(*others)] == [200] * 3


async def test_a_flood_of_requests_is_answered_or_refused_and_fails_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A connection whose request has just come is in use, though its handler has not begun."""
    async with opening_wire(more="bounds: {connections: 5}\n") as wire, AsyncExitStack() as exits:
        clients = [await exits.enter_async_context(connecting(wire.port)) for _ in range(3)]
        for client in clients:
            client.writer.write(render_chat(WHOLE))
        clients += [await exits.enter_async_context(connecting(wire.port)) for _ in range(20)]
        for client in clients[:3]:
            async with asyncio.timeout(30):
                assert (await client.receive()).status == 200
    assert not any("failed inside" in message for message in caplog.messages)


# Many summaries: only so many are made, for a tenant and in all, and no one else waits for them

_BOUNDS = "bounds: {summaries: 3, summaries_per_tenant: 2}\n"
# The hard threshold is 12,000, the soft one 800 tokens below it.
_PAST_SOFT_TOKENS = 11_250
_NO_PRUNING = "compaction: {prune: false}"


@dataclass
class Crowd:
    """Clients of tenants `a`, `b` …, each with a conversation of its own that needs a summary at once."""

    toy: ToyUpstream
    product: Product
    # No summary comes before it is set.
    ready: asyncio.Event
    answers: list["asyncio.Task[Answer]"] = field(default_factory=list)

    def send(self, tenant: str, count: int) -> None:
        for _ in range(count):
            body = _make_long(len(self.answers)).request(40)
            self.answers.append(asyncio.create_task(self.ask(tenant, body)))

    async def ask(self, tenant: str, body: bytes) -> Answer:
        url = f"{self.product.base_url}/chat/completions"
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
        async with serve(make_settings(toy, more=more)) as product:
            crowd = Crowd(toy, product, ready)
            try:
                yield crowd
            finally:
                ready.set()
                await asyncio.gather(*crowd.answers)
                await product.at_rest()


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
