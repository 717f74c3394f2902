"""Two gateways on one Redis: a chain gets one summary, even if the one that makes it dies or is paused, and
what is changed through one of them holds at the other from the next request on.
"""

import asyncio
import hashlib
import json
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.system.processes import linux_only, post, wait_until_said
from tests.toy.agent import Message, Session, make_session
from tests.toy.delivery import Delivery
from tests.toy.dialect import Request
from tests.toy.house import ADMIN, ADMIN_TOKEN, House, make_settings
from tests.toy.product import Process, Product, run_command, serve, serve_process
from tests.toy.redis_server import RedisServer, requires_redis, running_redis
from tests.toy.reply import Reply
from tests.toy.running import Answer, Run, wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = [requires_redis, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

_SESSION = make_session(41, 7, "one_user", 500)
# Some 13,000 tokens in a window of 16,000.
_TURN = 25
_OVERFLOWING = _SESSION.request(_TURN)
# More than the summary model's window holds.
_IN_TWO_PARTS = 40
# Far below the thresholds.
_SHORT = make_session(40, 8, "one_user", 500)
_POLICIES = """
policies:
  default: {commands: true}
  hasty: {summary: {deadline_seconds: 1}}
"""
_HASTY = '  - {match: "hasty", context: 16000, price: {input: 0, output: 0}, policy: hasty}\n'


@dataclass(frozen=True)
class Site:
    """Houses of one tenant at two replicas."""

    toy: ToyUpstream
    houses: Sequence[House]

    @property
    def key(self) -> str:
        return self.houses[0].key

    def send(self, replica: int, body: bytes = _OVERFLOWING) -> "asyncio.Task[Answer]":
        return asyncio.create_task(post(self.houses[replica].product.base_url, body, self.key))

    def hold_summary(self) -> asyncio.Event:
        """Summaries come when the event is set."""
        ready = asyncio.Event()
        self.toy.summary_delivery = Delivery(after=ready)
        return ready

    async def wait_for_summaries(self, count: int) -> None:
        """Until so many calls have reached the upstream."""
        await wait_until(lambda: len(self.toy.summaries) >= count, 60)

    async def play(self, replica: int, first: int, last: int, session: Session = _SHORT) -> Run:
        run = await self.houses[replica].play(session, first=first, last=last)
        assert run.failed == [] and run.refusals == []
        return run

    async def at_rest(self) -> None:
        for house in self.houses:
            await house.at_rest()

    @property
    def bodies(self) -> set[bytes]:
        """What the upstream was sent, without the summary calls."""
        return {seen.body for seen in self.toy.chats}


@asynccontextmanager
async def opening_site(redis: RedisServer, more: str = "", models: str = "") -> AsyncIterator[Site]:
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=redis.patient_url, more=models + ADMIN + more)
        async with serve(settings) as one, serve(settings) as two:
            yield make_site(toy, (one, two), "sk-toy")


def make_site(toy: ToyUpstream, products: Sequence[Product], key: str) -> Site:
    return Site(toy, [House(toy, product, key) for product in products])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_site(redis_of_session: RedisServer) -> AsyncIterator[Site]:
    redis_of_session.empty()
    async with opening_site(redis_of_session, _POLICIES, _HASTY) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module")
async def site(shared_site: Site, request: pytest.FixtureRequest) -> Site:
    """Of a tenant that this test alone has."""
    await shared_site.at_rest()
    shared_site.toy.reset()
    shared_site.toy.reply = lambda _: Reply(text="Noted.")
    products = [house.product for house in shared_site.houses]
    return make_site(
        shared_site.toy, products, f"sk-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]}"
    )


async def list_keys(redis: RedisServer, kind: str) -> list[str]:
    return [key for key in await redis.list_keys() if f"{kind}:" in key]


async def list_running_leases(redis: RedisServer) -> list[str]:
    """Of compactions."""
    return [key for key in await list_keys(redis, "lease") if "activity" not in key]


def read_summary(body: bytes) -> str:
    """The text that stands for the old turns: the reply behind the task."""
    messages: list[Message] = json.loads(body)["messages"]
    return str(next(message["content"] for message in messages if message["role"] == "assistant"))


@pytest.mark.parametrize(("turn", "calls"), [(_TURN, 1), (_IN_TWO_PARTS, 2)])
async def test_a_hundred_requests_of_one_conversation_at_two_replicas_get_one_summary(
    site: Site, turn: int, calls: int
) -> None:
    """As many calls as one request needs."""
    ready = site.hold_summary()
    answers = [site.send(number % 2, _SESSION.request(turn)) for number in range(100)]
    await site.wait_for_summaries(1)
    ready.set()
    assert [(await answer).status for answer in answers] == [200] * 100
    assert len(site.toy.summaries) == calls
    assert len(site.toy.chats) == 100 and len(site.bodies) == 1


async def test_requests_of_several_turns_share_one_summary_too(site: Site) -> None:
    """Their cuts differ, but all hold what the summary of the first one stands for."""
    turns = random.Random(5).choices(range(_TURN, _TURN + 4), k=60)
    ready = site.hold_summary()
    answers = [site.send(0)]
    await site.wait_for_summaries(1)
    answers += [site.send(number % 2, _SESSION.request(turn)) for number, turn in enumerate(turns)]
    ready.set()
    assert all([(await answer).is_whole for answer in answers])
    assert len(site.toy.summaries) == 1
    assert len({read_summary(seen.body) for seen in site.toy.chats}) == 1


async def test_two_conversations_that_share_their_task_do_not_wait_for_one_another(site: Site) -> None:
    other = make_session(41, 8, "one_user", 500)
    body = json.loads(other.request(_TURN))
    body["messages"][:2] = json.loads(_OVERFLOWING)["messages"][:2]
    ready = site.hold_summary()
    first = site.send(0)
    await site.wait_for_summaries(1)
    site.toy.summary_delivery = Delivery()
    assert (await site.send(1, json.dumps(body).encode())).is_whole
    assert not first.done()
    ready.set()
    assert (await first).is_whole


async def test_two_tenants_with_the_same_words_share_nothing(site: Site, shared_site: Site) -> None:
    ready = site.hold_summary()
    first = site.send(0)
    await site.wait_for_summaries(1)
    second = shared_site.send(1)
    await site.wait_for_summaries(2)
    ready.set()
    assert (await first).is_whole and (await second).is_whole
    assert len(site.toy.summaries) == 2


async def test_a_client_waits_for_another_replica_no_longer_than_its_deadline(site: Site) -> None:
    """Then it gets a digest, and so does the replica that makes the summary, until that is there."""
    ready = site.hold_summary()
    body = _SESSION.request(_IN_TWO_PARTS).replace(b'"toy-model"', b'"hasty"')
    answers = [site.send(0, body)]
    await site.wait_for_summaries(1)
    answers += [site.send(number % 2, body) for number in range(10)]
    assert {(await answer).header("x-gateway-plan") for answer in answers} == {"digest"}
    assert len(site.toy.summaries) == 1 and len(site.bodies) == 1
    ready.set()


async def test_a_summary_whose_store_is_lost_meanwhile_is_used_and_stored_when_it_is_back() -> None:
    async with running_redis() as redis, opening_site(redis) as site:
        site.toy.reply = lambda _: Reply(text="Noted.")
        ready = site.hold_summary()
        answer = site.send(0)
        await site.wait_for_summaries(1)
        await redis.kill()
        ready.set()
        assert (await answer).header("x-gateway-plan") == "pivot"
        await redis.start()
        async with asyncio.timeout(60):
            while not await list_keys(redis, "pivot"):
                await asyncio.sleep(0.05)
        # The other replica may not have found the server yet.
        settings = make_settings(site.toy, store=redis.patient_url, more=ADMIN)
        async with serve(settings) as later:
            answer = asyncio.create_task(post(later.base_url, _OVERFLOWING, site.key))
            assert (await answer).header("x-gateway-plan") == "pivot"
        assert len(site.toy.summaries) == 1 and len(site.bodies) == 1


@pytest.mark.parametrize("seconds", [0.06, 0.3])
async def test_a_short_pause_of_redis_makes_no_second_summary(
    empty_redis: RedisServer, seconds: float
) -> None:
    """Not knowing of a summary is not taken for there being none."""
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=empty_redis.url, more=ADMIN)
        async with serve(settings) as one, serve(settings) as two:
            site = make_site(toy, (one, two), "sk-short-pause")
            assert (await site.send(0)).header("x-gateway-plan") == "pivot"
            await site.at_rest()
            made = len(toy.summaries)
            empty_redis.pause()
            asyncio.get_running_loop().call_later(seconds, empty_redis.resume)
            answer = await site.send(1, _SESSION.request(_TURN + 1))
            assert answer.header("x-gateway-plan") == "pivot"
            assert len(toy.summaries) == made


def make_command(turn: int) -> bytes:
    """The conversation after this turn, and the command."""
    body = json.loads(_SHORT.request(turn))
    messages: list[Message] = [*body["messages"], {"role": "assistant", "content": "Done."}]
    return json.dumps(body | {"messages": [*messages, {"role": "user", "content": "/compact"}]}).encode()


async def test_a_command_that_is_sent_to_both_replicas_is_carried_out_once(site: Site) -> None:
    """As by a client that tries again, through a balancer."""
    ready = site.hold_summary()
    commands = [site.send(replica, make_command(12)) for replica in (0, 1)]
    await site.wait_for_summaries(1)
    ready.set()
    answers = [await command for command in commands]
    answers.append(await site.send(1, make_command(12)))
    texts = {json.loads(answer.body)["choices"][0]["message"]["content"] for answer in answers}
    assert len(texts) == 1 and texts.pop().startswith("Compacted: ")
    assert len(site.toy.summaries) == 1


async def compact(site: Site, replica: int, conversation: str, body: bytes = b"") -> dict[str, str]:
    status, told = await site.houses[replica].admin(f"/conversations/{conversation}/compact", "POST", body)
    assert status == 202, told
    return dict(told)


async def test_what_was_compacted_at_one_replica_applies_at_the_other_from_the_next_request_on(
    site: Site,
) -> None:
    """Far below the thresholds; the other one has seen the turn before, so that only news can tell it."""
    before = await site.play(0, 0, 12)
    await site.play(1, 11, 13)
    await compact(site, 0, before.conversation)
    await site.at_rest()
    after = [await site.play(replica, turn, turn + 1) for turn, replica in ((13, 1), (14, 0))]
    assert [run.plans for run in after] == [["pivot"], ["pivot"]]
    assert len(site.toy.summaries) == 1


async def test_a_compaction_in_progress_at_one_replica_is_not_begun_again_by_the_other(site: Site) -> None:
    """Whose next request finds the marker that is meant for a crash."""
    before = await site.play(0, 0, 12)
    ready = site.hold_summary()
    await compact(site, 0, before.conversation)
    await site.wait_for_summaries(1)
    await site.play(1, 12, 13)
    ready.set()
    await site.at_rest()
    assert len(site.toy.summaries) == 1
    assert (await site.play(1, 13, 14)).plans == ["pivot"]


async def test_what_was_scheduled_at_one_replica_is_carried_out_by_the_one_with_the_next_request(
    redis_of_session: RedisServer,
) -> None:
    async with opening_site(redis_of_session, "cache: {bodies: 1}\n") as site:
        before = await site.play(0, 0, 12)
        await site.play(0, 0, 1, make_session(2, 4))
        told = await compact(site, 0, before.conversation, b'{"instructions": "Keep names."}')
        assert told["begins"] == "at the next request"
        site.toy.reply = lambda _: Reply(text="Noted.")
        await site.play(1, 12, 13)
        await site.at_rest()
        await site.play(0, 13, 14)
        await site.at_rest()
        (summary,) = site.toy.summaries
        assert b"Keep names." in summary.body
        assert (await site.play(0, 14, 15)).plans == ["pivot"]


async def test_what_one_replica_was_taught_of_a_model_holds_at_the_other_one(
    redis_of_session: RedisServer,
) -> None:
    """An upstream with half of the window that the settings say refuses once, not once for each replica."""
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=redis_of_session.patient_url, more=ADMIN)
        settings = settings.replace("context: 16000", "context: 64000")
        async with serve(settings) as one, serve(settings) as two:
            site = make_site(toy, (one, two), "sk-taught")
            taught = await site.houses[0].play(_SESSION, first=30, last=32)
            assert taught.failed == [] and len(taught.refusals) == 1
            await site.at_rest()
            known = await site.houses[1].play(_SESSION, first=32, last=34)
    assert known.failed == [] and known.refusals == []


async def test_log_and_originals_are_shown_by_a_replica_that_never_saw_the_conversation(site: Site) -> None:
    run = await site.play(0, 0, 30, make_session(30, 3))
    await site.at_rest()
    here, there = site.houses
    one = f"/conversations/{run.conversation}"
    status, log = await here.admin(f"{one}/log")
    assert status == 200 and log["log"]
    taken = await here.admin(f"{one}/originals")
    digest = taken[1]["taken"][0]["messages"][0]["digest"]
    async with asyncio.timeout(30):
        # Entries are queued where they are made, and on the server soon.
        while await there.admin(f"{one}/log") != (200, log):
            await asyncio.sleep(0.02)
    assert await there.admin(f"{one}/originals") == taken
    found = await there.admin(f"{one}/originals/{digest}")
    assert found == await here.admin(f"{one}/originals/{digest}") and found[0] == 200


async def test_what_each_replica_has_counted_of_a_conversation_is_added_up(
    site: Site, redis_of_session: RedisServer
) -> None:
    """A gateway that starts later reads the sum, however their turns were mixed."""
    for turn, replica in enumerate((0, 1, 1, 0, 1, 0, 0, 0, 1, 0)):
        run = await site.play(replica, turn, turn + 1)
        if turn % 3 == 0:
            await site.at_rest()
    await site.at_rest()
    settings = make_settings(site.toy, store=redis_of_session.patient_url, more=ADMIN)
    async with serve(settings) as later:
        house = House(site.toy, later, site.key)
        async with asyncio.timeout(30):
            while (shown := await house.admin(f"/conversations/{run.conversation}"))[0] != 200:
                await asyncio.sleep(0.02)
    assert shown[1]["requests"] == 10
    assert shown[1]["economics"]["prompt_tokens"] == sum(seen.prompt_tokens for seen in site.toy.chats)


async def test_what_is_purged_through_one_replica_is_gone_at_the_other_one(
    redis_of_session: RedisServer, tmp_path: Path
) -> None:
    tenants = "tenants: [{name: acme, keys: [sk-toy]}]\n"
    session = make_session(40, 9, "one_user", 600)
    async with opening_site(redis_of_session, tenants) as site:
        run = await site.play(0, 0, 28, session)
        await site.play(1, 28, 30, session)
        assert site.toy.summaries
        await site.at_rest()
        here, there = site.houses
        config = tmp_path / "gateway.yaml"
        port = here.product.admin_port
        config.write_text(
            make_settings(site.toy, store=redis_of_session.patient_url, more=tenants)
            + f"admin: {{port: {port}, token: {ADMIN_TOKEN}}}\n"
        )
        words = ("tenants", "purge", "acme", "--yes", "--config", str(config))
        done = await asyncio.to_thread(run_command, *words, cwd=tmp_path)
        assert done.status == 0, done.err
        for house in (here, there):
            for path in ("", "/log", "/originals"):
                assert (await house.admin(f"/conversations/{run.conversation}{path}"))[0] == 404, path
        # Whatever is sent now has no word of a summary that was made before.
        made = len(site.toy.summaries)
        after = await site.play(1, 30, 31, session)
        assert len(site.toy.summaries) > made or "pivot" not in after.plans


def end_alike(name: str) -> list[Message]:
    """A history whose last turns are those of any other."""
    own = [_make_pair(f"only-{name}", turn) for turn in range(12)]
    same = [_make_pair("same", turn) for turn in range(12)]
    task: Message = {"role": "user", "content": f"The task of only-{name}."}
    return [task, *(message for pair in (*own, *same) for message in pair)]


def _make_pair(name: str, turn: int) -> tuple[Message, Message]:
    text = f"{name}:{turn} " + "word " * 500
    return {"role": "assistant", "content": text}, {"role": "user", "content": f"On with {name}:{turn}."}


@pytest.mark.parametrize("at", [0, 1])
async def test_a_history_that_ends_like_another_one_is_taken_for_it_only_by_its_name(
    site: Site, at: int
) -> None:
    """Clients that drop what is old, at whichever replica; both histories were compacted."""

    async def send(replica: int, messages: list[Message], label: str | None = None) -> bytes:
        house = site.houses[replica]
        headers = {"x-gateway-session": label} if label else {}
        answer = await house.post(
            "/chat/completions", {"model": "toy-model", "messages": messages}, **headers
        )
        assert answer.status == 200
        await site.at_rest()
        return site.toy.chats[-1].body

    site.toy.summary = lambda request: Reply(text=f"We did the task of {find_name(request)}. All is well.")
    await send(0, end_alike("a"), "a")
    assert b"only-b" in await send(1, end_alike("b"))
    assert len(site.toy.summaries) == 2
    left = [*end_alike("c")[-20:], *_make_pair("only-a", 20)]
    assert b"the task of only-a" in await send(at, left, "a")
    for label in ("other", None):
        sent = await send(at, left, label)
        assert b"the task of" not in sent and b"only-b" not in sent


def find_name(request: Request) -> str:
    """Which history a summary is asked for."""
    return "only-a" if "only-a" in json.dumps(request) else "only-b"


@dataclass(frozen=True)
class Pair:
    """Two replicas as processes. The first summary does not come before the toy's event is set."""

    toy: ToyUpstream
    one: Process
    two: Process

    def send(self, gateway: Process, key: str) -> "asyncio.Task[Answer]":
        return asyncio.create_task(post(gateway.base_url, _OVERFLOWING, key))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_pair(
    redis_of_session: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    folders: list[Path] = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=redis_of_session.patient_url)
        async with serve_process(settings, folders[0]) as one, serve_process(settings, folders[1]) as two:
            yield Pair(toy, one, two)


@pytest_asyncio.fixture(loop_scope="module")
async def pair(shared_pair: Pair) -> Pair:
    for gateway in (shared_pair.one, shared_pair.two):
        if not gateway.is_running:
            await gateway.start()
    shared_pair.toy.reset()
    shared_pair.toy.reply = lambda _: Reply(text="Noted.")
    return shared_pair


@linux_only
async def test_when_the_replica_that_makes_the_summary_is_killed_one_more_call_is_made(pair: Pair) -> None:
    toy = pair.toy
    toy.summary_delivery = Delivery(after=asyncio.Event())
    lost = pair.send(pair.one, "sk-killed")
    await wait_until(lambda: len(toy.summaries) == 1)
    toy.summary_delivery = Delivery()
    answers = [pair.send(pair.two, "sk-killed") for _ in range(20)]
    await pair.one.kill()
    assert all([(await answer).is_whole for answer in answers])
    assert len(toy.summaries) == 2 and len({seen.body for seen in toy.chats}) == 1
    with pytest.raises(aiohttp.ClientError):
        await lost


@linux_only
async def test_a_replica_that_was_paused_for_too_long_cannot_overwrite_the_summary(
    pair: Pair, redis_of_session: RedisServer
) -> None:
    toy, redis = pair.toy, redis_of_session
    ready, others = asyncio.Event(), set(await list_keys(redis, "pivot"))

    async def read_pivots() -> dict[str, object]:
        keys = set(await list_keys(redis, "pivot")) - others
        return {key: await redis.run("GET", key) for key in sorted(keys)}

    toy.summary_delivery = Delivery(after=ready)
    paused = pair.send(pair.one, "sk-paused")
    await wait_until(lambda: len(toy.summaries) == 1)
    pair.one.send(signal.SIGSTOP)
    toy.summary_delivery = Delivery()
    assert (await pair.send(pair.two, "sk-paused")).is_whole
    before = await read_pivots()
    ready.set()
    pair.one.send(signal.SIGCONT)
    assert (await paused).is_whole
    assert len(toy.summaries) == 2 and len({seen.body for seen in toy.chats}) == 1
    assert len(before) == 1 and await read_pivots() == before
    assert "lease lost" in pair.one.log


@linux_only
async def test_a_replica_that_stops_at_once_leaves_no_lease_behind(
    pair: Pair, redis_of_session: RedisServer
) -> None:
    toy, redis = pair.toy, redis_of_session
    toy.summary_delivery = Delivery(after=asyncio.Event())
    lost = pair.send(pair.one, "sk-stopped")
    await wait_until(lambda: len(toy.summaries) == 1)
    assert await list_running_leases(redis)
    # The second signal ends the drain, which would wait for the client.
    pair.one.send(signal.SIGTERM)
    await wait_until_said(pair.one, "draining")
    pair.one.send(signal.SIGTERM)
    await pair.one.wait()
    assert await list_running_leases(redis) == []
    toy.summary_delivery = Delivery()
    assert (await pair.send(pair.two, "sk-stopped")).is_whole
    assert len(toy.summaries) == 2
    await asyncio.gather(lost, return_exceptions=True)
