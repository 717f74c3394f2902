"""What a person asks for at one of two replicas is done once, and applies at both."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from tests.toy.admin_port import ADMIN, ask_to_compact
from tests.toy.agent import Message, Session, make_session
from tests.toy.delivery import Delivery
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.redis_server import RedisServer, requires_redis
from tests.toy.reply import Reply
from tests.toy.running import Pace, Run, ask, run_session, wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = requires_redis

_SESSION = make_session(16, 3)
_HEADERS = {"Authorization": "Bearer sk-toy", "Content-Type": "application/json"}


@dataclass
class Replicas:
    toy: ToyUpstream
    one: RunningGateway
    two: RunningGateway

    async def play(self, gateway: RunningGateway, first: int, last: int, session: Session = _SESSION) -> Run:
        run = await run_session(session, gateway.base_url, self.toy, pace=Pace(first=first, last=last))
        assert run.failed == [] and run.refusals == []
        return run

    async def settle(self) -> None:
        await self.one.settle()
        await self.two.settle()


@asynccontextmanager
async def replicas(redis: RedisServer, more: str = "") -> AsyncIterator[Replicas]:
    async with ToyUpstream() as toy:
        settings = make_settings(toy, store=redis.patient_url, more=ADMIN + more)
        async with running_gateway(settings) as one, running_gateway(settings) as two:
            yield Replicas(toy, one, two)


def make_command(turn: int) -> bytes:
    """The conversation after this turn, and the command."""
    body = json.loads(_SESSION.request(turn))
    messages: list[Message] = [*body["messages"], {"role": "assistant", "content": "Done."}]
    return json.dumps(body | {"messages": [*messages, {"role": "user", "content": "/compact"}]}).encode()


async def send_command(gateway: RunningGateway) -> str:
    """The text of the response, which is the gateway's own."""
    async with aiohttp.ClientSession(headers=_HEADERS) as http:
        answer = await ask(http, f"{gateway.base_url}/chat/completions", make_command(12))
    assert answer.is_whole
    return str(json.loads(answer.body)["choices"][0]["message"]["content"])


async def test_a_command_that_is_sent_to_both_replicas_is_carried_out_once(empty_redis: RedisServer) -> None:
    """As by a client that tries again, through a balancer."""
    async with replicas(empty_redis, "policies: {default: {commands: true}}\n") as site:
        ready = asyncio.Event()
        site.toy.summary_delivery = Delivery(after=ready)
        commands = [asyncio.create_task(send_command(each)) for each in (site.one, site.two)]
        await wait_until(lambda: len(site.toy.summaries) == 1)
        ready.set()
        texts = [await command for command in commands]
        assert texts[0] == texts[1] and texts[0].startswith("Compacted: ")
        assert await send_command(site.two) == texts[0]
        assert len(site.toy.summaries) == 1


async def test_what_was_compacted_at_one_replica_applies_at_the_other_from_the_next_request_on(
    empty_redis: RedisServer,
) -> None:
    async with replicas(empty_redis) as site:
        before = await site.play(site.one, 0, 12)
        await site.play(site.two, 12, 13)
        assert (await ask_to_compact(site.one, before.conversation))[0] == 202
        await site.settle()
        after = [await site.play(each, turn, turn + 1) for turn, each in ((13, site.two), (14, site.one))]
        assert [run.plans for run in after] == [["pivot"], ["pivot"]]
        assert len(site.toy.summaries) == 1


async def test_a_compaction_in_progress_at_one_replica_is_not_begun_again_by_the_other(
    empty_redis: RedisServer,
) -> None:
    """Whose next request finds the marker that is meant for a crash."""
    async with replicas(empty_redis) as site:
        before = await site.play(site.one, 0, 12)
        ready = asyncio.Event()
        site.toy.summary_delivery = Delivery(after=ready)
        assert (await ask_to_compact(site.one, before.conversation))[0] == 202
        await wait_until(lambda: len(site.toy.summaries) == 1)
        await site.play(site.two, 12, 13)
        ready.set()
        await site.settle()
        assert len(site.toy.summaries) == 1
        assert (await site.play(site.two, 13, 14)).plans == ["pivot"]


async def test_what_was_scheduled_at_one_replica_is_carried_out_by_the_one_with_the_next_request(
    empty_redis: RedisServer,
) -> None:
    async with replicas(empty_redis, "cache: {bodies: 1}\n") as site:
        before = await site.play(site.one, 0, 12)
        await site.play(site.one, 0, 1, make_session(2, 4))
        status, told = await ask_to_compact(site.one, before.conversation, b'{"instructions": "Keep names."}')
        assert (status, told["begins"]) == (202, "at the next request")
        site.toy.reply = lambda _: Reply(text="Noted.")
        await site.play(site.two, 12, 13)
        await site.settle()
        await site.play(site.one, 13, 14)
        await site.settle()
        (summary,) = site.toy.summaries
        assert b"Keep names." in summary.body
        assert (await site.play(site.one, 14, 15)).plans == ["pivot"]
