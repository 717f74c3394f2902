"""kill -9: what changed the prefix stays in use, and what was due is made, whatever else is lost.

What a sudden end leaves on disk is a copy of the folder of the store at that moment, and on a Redis what the
server holds, for a gateway that knows nothing. Only some tests kill a process for it.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.system.processes import PATIENCE_SECONDS, post
from tests.toy.agent import Message, Shape, make_session
from tests.toy.delivery import Delivery
from tests.toy.house import House, make_settings
from tests.toy.product import serve, serve_process
from tests.toy.redis_server import RedisServer
from tests.toy.running import Answer, Pace, run_session, wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.timeout(400)

_TURNS = 60
_SESSION = make_session(_TURNS, 3, "one_user", 600)
_SHAPE = Shape(max_tokens=1_000)
# After thirteen turns a summary is due in the background.
_DUE = make_session(40, 11, "one_user", 700)
# By the plan that changes the prefix.
_POLICIES = {
    "pivot": "compaction: {prune: false}",
    "pruned": "pruning: {protect_tokens: 1000, minimum_tokens: 500}",
}
# Right after the response, when nothing is written behind it yet, and when everything is.
_MOMENTS = ("at once", "at rest")


@dataclass
class Talk:
    """A conversation whose gateway may end at any moment."""

    house: House
    settings: str
    turn: int = 0

    async def say(self) -> Answer:
        """The next request of the conversation."""
        self.turn += 1
        turn = self.turn
        self.house.toy.reply = lambda _: _SESSION.reply(turn)
        return await self.house.post("/chat/completions", _SESSION.request(turn))

    async def compact(self) -> Answer:
        """The newest request once more, with a command behind it."""
        body = json.loads(_SESSION.request(self.turn))
        messages: list[Message] = [*body["messages"], {"role": "user", "content": "/compact"}]
        text = json.dumps(body | {"messages": messages}, ensure_ascii=False, separators=(",", ":"))
        return await self.house.post("/chat/completions", text.encode())

    async def say_until(self, plan: str) -> None:
        """Requests up to the first one with this plan, whose upstream prefix is new."""
        while self.turn < _TURNS - 2:
            answer = await self.say()
            if answer.header("x-gateway-plan") == plan:
                return
            # A summary in the background comes before the next request, as it does with slow models.
            await wait_until(lambda: all(seen.finished for seen in self.house.toy.summaries))
            await self.house.at_rest()
        raise AssertionError(f"no request had the plan {plan}")


@asynccontextmanager
async def talking(store: str, bias: float, policy: str) -> AsyncIterator[Talk]:
    """bias: how many tokens more than we count the upstream counts. After a sudden end that is unknown."""
    async with ToyUpstream(window=16_000, bias=bias) as toy:
        settings = make_settings(toy, store=store, more=f"policies: {{default: {{{policy}}}}}\n")
        async with serve(settings) as product:
            folder = Path(store.removeprefix("disk:")) if store.startswith("disk:") else None
            yield Talk(House(toy, product, "sk-toy", folder), settings)


@asynccontextmanager
async def dying(talk: Talk, folder: Path) -> AsyncIterator[Talk]:
    """The same conversation at a gateway that knows what the store holds at this moment, and nothing else."""
    settings = talk.settings
    if talk.house.store is not None:
        image = await talk.house.image(folder / "image")
        settings = settings.replace(str(talk.house.store), str(image))
        assert str(image) in settings
    async with serve(settings) as product:
        yield Talk(House(talk.house.toy, product, talk.house.key), settings, talk.turn)


def shared_start(first: bytes, second: bytes) -> int:
    """How many bytes two bodies begin with in common."""
    size = min(len(first), len(second))
    return next((at for at in range(size) if first[at] != second[at]), size)


def check_same_prefix(toy: ToyUpstream) -> None:
    """Of the two newest requests: all but the closing of the array and the fields behind it."""
    before, after = toy.chats[-2:]
    assert shared_start(before.body, after.body) >= before.body.index(b'],"tools"')


@pytest.mark.parametrize("moment", _MOMENTS)
@pytest.mark.parametrize("plan", _POLICIES)
async def test_what_changes_the_prefix_survives_the_end_after_its_first_use(
    tmp_path: Path, store_url: str, plan: str, moment: str
) -> None:
    async with talking(store_url, 1.4, _POLICIES[plan]) as talk:
        await talk.say_until(plan)
        if moment == "at rest":
            await talk.house.at_rest()
        async with dying(talk, tmp_path) as again:
            answer = await again.say()
            assert answer.header("x-gateway-plan") == plan
            check_same_prefix(talk.house.toy)


@pytest.mark.parametrize("moment", _MOMENTS)
async def test_a_compaction_by_hand_survives_the_end_after_its_first_use(
    tmp_path: Path, store_url: str, moment: str
) -> None:
    """It applies far below the thresholds, where nothing but its head says so."""
    async with talking(store_url, 1.0, "commands: true") as talk:
        for _ in range(8):
            await talk.say()
        assert (await talk.compact()).status == 200
        assert (await talk.say()).header("x-gateway-plan") == "pivot"
        if moment == "at rest":
            await talk.house.at_rest()
        async with dying(talk, tmp_path) as again:
            assert (await again.say()).header("x-gateway-plan") == "pivot"
            check_same_prefix(talk.house.toy)


async def test_a_compaction_by_hand_survives_the_end_after_its_response(
    tmp_path: Path, store_url: str
) -> None:
    async with talking(store_url, 1.0, "commands: true") as talk:
        for _ in range(8):
            await talk.say()
        assert (await talk.compact()).status == 200
        async with dying(talk, tmp_path) as again:
            assert (await again.say()).header("x-gateway-plan") == "pivot"


async def test_a_summary_that_is_under_way_at_the_end_is_made_at_the_next_request(tmp_path: Path) -> None:
    """Before the response of that, behind which a new one would begin in any case."""
    async with talking(f"disk:{tmp_path}/state", 1.1, "commands: false") as talk:
        ready = await begin_summary(talk.house.product.base_url, talk.house.toy)
        images = (tmp_path / str(number) for number in count())
        async with asyncio.timeout(PATIENCE_SECONDS):
            # What the end leaves a moment too early says nothing of it yet.
            while not await is_resumed_after_end(talk, next(images)):
                pass
        ready.set()


async def is_resumed_after_end(talk: Talk, folder: Path) -> bool:
    async with dying(talk, folder) as again:
        return await is_resumed(again.house.product.base_url, talk.house.toy, 3.0)


async def test_a_replica_that_is_killed_while_it_makes_a_summary_leaves_it_to_another_one(
    tmp_path: Path, empty_redis: RedisServer
) -> None:
    """Its lease runs out first."""
    async with ToyUpstream(window=16_000, bias=1.1) as toy:
        settings = make_settings(toy, store=empty_redis.patient_url, more="admin: {port: 0}\n")
        async with serve_process(settings, tmp_path) as served, serve(settings) as other:
            ready = await begin_summary(served.base_url, toy)
            await wait_until_marked(empty_redis)
            await served.kill()
            assert await is_resumed(other.base_url, toy, PATIENCE_SECONDS)
            ready.set()


async def wait_until_marked(redis: RedisServer) -> None:
    """Returns once it knows that a summary is under way, and how long the conversation is by then."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            keys = await redis.list_keys()
            marked, heads = (
                {key.partition(kind)[2] for key in keys if kind in key} for kind in (":marker:", ":head:")
            )
            if marked & heads:
                return
            await asyncio.sleep(0.02)


async def begin_summary(base_url: str, toy: ToyUpstream) -> asyncio.Event:
    """Returns once a summary is under way. It comes when the event is set."""
    ready = asyncio.Event()
    toy.summary_delivery = Delivery(after=ready)
    # A summary is due after the last of them.
    run = await run_session(_DUE, base_url, toy, _SHAPE, Pace(last=13))
    assert run.failed == []
    await wait_until(lambda: len(toy.summaries) == 1)
    toy.summary_delivery = Delivery()
    return ready


async def is_resumed(base_url: str, toy: ToyUpstream, seconds: float) -> bool:
    """Whether a summary is asked for within this time, while the next request waits for its response."""
    before, held = len(toy.summaries), asyncio.Event()
    toy.delivery = Delivery(after=held)
    asking = asyncio.create_task(post(base_url, _DUE.request(13, _SHAPE)))
    try:
        await wait_until(lambda: len(toy.summaries) > before, seconds)
    except TimeoutError:
        return False
    finally:
        held.set()
        assert (await asking).is_whole
    return True


async def test_a_process_that_is_killed_goes_on_with_its_conversation_and_its_summary(
    tmp_path: Path, store_url: str
) -> None:
    async with (
        ToyUpstream(window=16_000, bias=1.1) as toy,
        serve_process(make_settings(toy, store=store_url), tmp_path) as served,
    ):
        # No summary is due at this turn, nor after it.
        first = await run_session(_DUE, served.base_url, toy, _SHAPE, Pace(last=28))
        await served.kill()
        assert first.failed == [] and toy.summaries
        made = len(toy.summaries)
        await served.start()
        again = await run_session(_DUE, served.base_url, toy, _SHAPE, Pace(first=28, last=29))
        assert "Traceback" not in served.log
        assert await served.stop() == 0
    assert again.conversation == first.conversation and again.plans == ["pivot"]
    before, after = first.outgoing[-1].request["messages"], again.outgoing[0].request["messages"]
    assert isinstance(before, list) and isinstance(after, list)
    assert after[: len(before)] == before
    assert len(toy.summaries) == made
