"""Two replicas on one Redis: a chain gets one summary, even if the one that makes it dies or is paused."""

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.covering import choose_rows
from tests.hostile.process import ProcessGateway, linux_only, running_process
from tests.toy.admin_port import ADMIN
from tests.toy.agent import Message, make_session
from tests.toy.delivery import Delivery
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.redis_server import RedisServer, requires_redis, running_redis
from tests.toy.reply import Reply
from tests.toy.running import Answer, ask, wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = requires_redis

_SESSION = make_session(41, 7, "one_user", 500)
# Some 13,000 tokens in a window of 16,000.
_TURN = 25
_OVERFLOWING = _SESSION.request(_TURN)
# More than the summary model's window holds.
_IN_TWO_PARTS = 40
_HEADERS = {"Authorization": "Bearer sk-toy", "Content-Type": "application/json"}


@dataclass
class Clients:
    toy: ToyUpstream
    base_urls: Sequence[str]
    http: aiohttp.ClientSession

    def send(self, replica: int, body: bytes = _OVERFLOWING) -> "asyncio.Task[Answer]":
        return asyncio.create_task(ask(self.http, f"{self.base_urls[replica]}/chat/completions", body))

    async def wait_for_summaries(self, count: int) -> None:
        """Until so many calls have reached the upstream."""
        await wait_until(lambda: len(self.toy.summaries) >= count, 60)


@asynccontextmanager
async def asking(toy: ToyUpstream, base_urls: Sequence[str]) -> AsyncIterator[Clients]:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(headers=_HEADERS, connector=connector, timeout=timeout) as http:
        yield Clients(toy, base_urls, http)


@asynccontextmanager
async def opened_replicas(redis: RedisServer, more: str = "") -> AsyncIterator[Clients]:
    """Both in this process."""
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = lambda _: Reply(text="Noted.")
        settings = make_settings(toy, store=redis.patient_url, more=ADMIN + more)
        async with (
            running_gateway(settings) as one,
            running_gateway(settings) as two,
            asking(toy, (one.base_url, two.base_url)) as clients,
        ):
            yield clients


@asynccontextmanager
async def started_replicas(
    redis: RedisServer, folder: Path
) -> AsyncIterator[tuple[Clients, ProcessGateway, ProcessGateway]]:
    """Each is a process. The first summary does not come before `Delivery.after` of the toy is set."""
    async with ToyUpstream(window=16_000) as toy, AsyncExitStack() as exits:
        toy.reply = lambda _: Reply(text="Noted.")
        settings, gateways = make_settings(toy, store=redis.patient_url), []
        for name in ("one", "two"):
            (folder / name).mkdir()
            gateways.append(await exits.enter_async_context(running_process(settings, folder / name)))
        one, two = gateways
        yield await exits.enter_async_context(asking(toy, (one.base_url, two.base_url))), one, two


def hold_first_summary(toy: ToyUpstream) -> asyncio.Event:
    """The first summary comes when the event is set; later ones come at once."""
    ready = asyncio.Event()
    toy.summary_delivery = Delivery(after=ready)
    return ready


def list_bodies(toy: ToyUpstream) -> set[bytes]:
    """What the upstream was sent, without the summary calls."""
    return {seen.body for seen in toy.chats}


def read_summary(body: bytes) -> str:
    """The text that stands for the old turns: the reply behind the task."""
    messages: list[Message] = json.loads(body)["messages"]
    return str(next(message["content"] for message in messages if message["role"] == "assistant"))


async def list_pivots(redis: RedisServer) -> list[object]:
    keys = [key for key in await redis.list_keys() if "pivot:" in key]
    return [await redis.run("GET", key) for key in keys]


async def list_leases(redis: RedisServer) -> list[str]:
    return [key for key in await redis.list_keys() if "lease:" in key]


@pytest.mark.parametrize(("turn", "calls"), choose_rows([(_TURN, 1), (_IN_TWO_PARTS, 2)], [1]))
async def test_a_hundred_requests_of_one_conversation_at_two_replicas_get_one_summary(
    empty_redis: RedisServer, turn: int, calls: int
) -> None:
    """As many calls as one request needs."""
    async with opened_replicas(empty_redis) as clients:
        ready = hold_first_summary(clients.toy)
        answers = [clients.send(number % 2, _SESSION.request(turn)) for number in range(100)]
        await clients.wait_for_summaries(1)
        ready.set()
        assert [(await answer).status for answer in answers] == [200] * 100
        assert len(clients.toy.summaries) == calls
        assert len(clients.toy.chats) == 100 and len(list_bodies(clients.toy)) == 1
    assert len(await list_pivots(empty_redis)) == calls


async def test_requests_of_several_turns_share_one_summary_too(empty_redis: RedisServer) -> None:
    """Their cuts differ, but all hold what the summary of the first one stands for."""
    turns = random.Random(5).choices(range(_TURN, _TURN + 4), k=60)
    async with opened_replicas(empty_redis) as clients:
        ready = hold_first_summary(clients.toy)
        answers = [clients.send(0)]
        await clients.wait_for_summaries(1)
        answers += [clients.send(number % 2, _SESSION.request(turn)) for number, turn in enumerate(turns)]
        ready.set()
        assert all([(await answer).is_whole for answer in answers])
        assert len(clients.toy.summaries) == 1
        assert len({read_summary(seen.body) for seen in clients.toy.chats}) == 1


async def test_two_conversations_that_share_their_task_do_not_wait_for_one_another(
    empty_redis: RedisServer,
) -> None:
    other = make_session(41, 8, "one_user", 500)
    body = json.loads(other.request(_TURN))
    body["messages"][:2] = json.loads(_OVERFLOWING)["messages"][:2]
    async with opened_replicas(empty_redis) as clients:
        ready = hold_first_summary(clients.toy)
        first = clients.send(0)
        await clients.wait_for_summaries(1)
        clients.toy.summary_delivery = Delivery()
        assert (await clients.send(1, json.dumps(body).encode())).is_whole
        assert not first.done()
        ready.set()
        assert (await first).is_whole


async def test_a_client_waits_for_another_replica_no_longer_than_its_deadline(
    empty_redis: RedisServer,
) -> None:
    """Then it gets a digest, and so does the replica that makes the summary, until that is there."""
    more = "policies: {default: {summary: {deadline_seconds: 1}}}\n"
    async with opened_replicas(empty_redis, more) as clients:
        ready = hold_first_summary(clients.toy)
        body = _SESSION.request(_IN_TWO_PARTS)
        answers = [clients.send(0, body)]
        await clients.wait_for_summaries(1)
        answers += [clients.send(number % 2, body) for number in range(10)]
        assert {(await answer).header("x-gateway-plan") for answer in answers} == {"digest"}
        assert len(clients.toy.summaries) == 1 and len(list_bodies(clients.toy)) == 1
        ready.set()


async def test_a_summary_whose_store_is_lost_meanwhile_is_used_and_stored_when_it_is_back() -> None:
    async with running_redis() as redis, opened_replicas(redis) as clients:
        ready = hold_first_summary(clients.toy)
        answer = clients.send(0)
        await clients.wait_for_summaries(1)
        await redis.kill()
        ready.set()
        assert (await answer).header("x-gateway-plan") == "pivot"
        await redis.start()
        async with asyncio.timeout(60):
            while not await list_pivots(redis):
                await asyncio.sleep(0.05)
        # The other replica may not have found the server yet.
        settings = make_settings(clients.toy, store=redis.patient_url, more=ADMIN)
        async with running_gateway(settings) as later, asking(clients.toy, (later.base_url,)) as asker:
            assert (await asker.send(0)).header("x-gateway-plan") == "pivot"
        assert len(clients.toy.summaries) == 1 and len(list_bodies(clients.toy)) == 1


@linux_only
async def test_when_the_replica_that_makes_the_summary_is_killed_one_more_call_is_made(
    empty_redis: RedisServer, tmp_path: Path
) -> None:
    async with started_replicas(empty_redis, tmp_path) as (clients, one, _):
        hold_first_summary(clients.toy)
        lost = clients.send(0)
        await clients.wait_for_summaries(1)
        clients.toy.summary_delivery = Delivery()
        answers = [clients.send(1) for _ in range(20)]
        await one.kill()
        assert all([(await answer).is_whole for answer in answers])
        assert len(clients.toy.summaries) == 2 and len(list_bodies(clients.toy)) == 1
        with pytest.raises(aiohttp.ClientError):
            await lost


@linux_only
async def test_a_replica_that_was_paused_for_too_long_cannot_overwrite_the_summary(
    empty_redis: RedisServer, tmp_path: Path
) -> None:
    async with started_replicas(empty_redis, tmp_path) as (clients, one, _):
        ready = hold_first_summary(clients.toy)
        paused = clients.send(0)
        await clients.wait_for_summaries(1)
        one.send(signal.SIGSTOP)
        clients.toy.summary_delivery = Delivery()
        assert (await clients.send(1)).is_whole
        before = await list_pivots(empty_redis)
        ready.set()
        one.send(signal.SIGCONT)
        assert (await paused).is_whole
        assert len(clients.toy.summaries) == 2 and len(list_bodies(clients.toy)) == 1
        assert len(before) == 1 and await list_pivots(empty_redis) == before
        assert "lease lost" in one.log


@linux_only
async def test_a_replica_that_stops_at_once_leaves_no_lease_behind(
    empty_redis: RedisServer, tmp_path: Path
) -> None:
    async with started_replicas(empty_redis, tmp_path) as (clients, one, _):
        hold_first_summary(clients.toy)
        lost = clients.send(0)
        await clients.wait_for_summaries(1)
        assert await list_leases(empty_redis) != []
        # The second signal ends the drain, which would wait for the client.
        one.send(signal.SIGTERM)
        await wait_until(lambda: "draining" in one.log)
        one.send(signal.SIGTERM)
        await one.wait()
        assert await list_leases(empty_redis) == []
        clients.toy.summary_delivery = Delivery()
        assert (await clients.send(1)).is_whole
        assert len(clients.toy.summaries) == 2
        await asyncio.gather(lost, return_exceptions=True)
