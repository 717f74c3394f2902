"""Requests finish on the settings that they began with, and nothing is lost when others take over."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from gateway.settings import SettingsError
from tests.builders.compaction import talk
from tests.builders.pipeline import load_text
from tests.toy.admin_port import ADMIN, TOKEN, ask_to_compact
from tests.toy.delivery import Delivery
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Answer, ask, wait_until
from tests.toy.upstream import ToyUpstream

_TENANTS = "tenants: [{name: acme, keys: [%s]}]\n"


def _settings(toy: ToyUpstream, more: str) -> str:
    return make_settings(toy, more=ADMIN + more)


@dataclass
class Reloading:
    toy: ToyUpstream
    gateway: RunningGateway

    async def reload(self, more: str = "", toy: ToyUpstream | None = None) -> None:
        await self.gateway.app.reload(load_text(_settings(toy or self.toy, more)))

    async def say(self, messages: Sequence[object], key: str = "sk-toy", *, stream: bool = False) -> Answer:
        body = json.dumps({"model": "toy-model", "messages": messages, "stream": stream}).encode()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client:
            return await ask(client, f"{self.gateway.base_url}/chat/completions", body)


@asynccontextmanager
async def reloading(more: str = "", window: int = 16_000) -> AsyncIterator[Reloading]:
    async with ToyUpstream(window=window) as toy, running_gateway(_settings(toy, more)) as gateway:
        yield Reloading(toy, gateway)


async def test_a_stream_under_way_ends_at_its_upstream_and_the_next_request_goes_to_the_new_one() -> None:
    async with reloading() as case, ToyUpstream() as other:
        sent = asyncio.Event()
        case.toy.delivery = Delivery(after=sent)
        stream = asyncio.create_task(case.say(talk(1), stream=True))
        await wait_until(lambda: len(case.toy.chats) == 1)
        await case.reload(toy=other)
        assert (await case.say(talk(1))).is_whole
        assert (len(case.toy.chats), len(other.chats)) == (1, 1)
        assert case.gateway.app.generations.finishing == 1
        sent.set()
        assert (await stream).is_whole
        await wait_until(lambda: case.gateway.app.generations.finishing == 0)


async def test_what_ended_settings_had_open_is_closed_with_their_last_request() -> None:
    async with reloading() as case, ToyUpstream() as other:
        for at in range(5):
            await case.reload(toy=(other, case.toy)[at % 2])
            assert (await case.say(talk(1))).is_whole
        await wait_until(lambda: case.gateway.app.generations.finishing == 0)


async def test_connections_stay_if_no_upstream_has_changed() -> None:
    async with reloading(_TENANTS % "sk-toy") as case:
        relay = case.gateway.parts.current.generation.pipeline.relay
        await case.reload(_TENANTS % "sk-toy, sk-new")
        assert case.gateway.parts.current.generation.pipeline.relay is relay
        await wait_until(lambda: case.gateway.app.generations.finishing == 0)
        assert (await case.say(talk(1), "sk-new")).is_whole


async def test_a_key_is_rotated_without_losing_the_summary_of_its_tenant() -> None:
    async with reloading(_TENANTS % "sk-old") as case:
        long = talk(6)
        first = await case.say(long, "sk-old")
        assert first.header("x-gateway-plan") == "pivot"
        await case.gateway.settle()
        await case.reload(_TENANTS % "sk-old, sk-new")
        longer = [*long, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "Go on."}]
        assert (await case.say(longer, "sk-new")).header("x-gateway-plan") == "pivot"
        await case.reload(_TENANTS % "sk-new")
        assert (await case.say(longer, "sk-old")).status == 401
        assert (await case.say(longer, "sk-new")).header("x-gateway-plan") == "pivot"
    assert len(case.toy.summaries) == 1


async def test_a_chain_has_one_summary_across_a_reload() -> None:
    async with reloading() as case:
        finish = asyncio.Event()
        case.toy.summary_delivery = Delivery(after=finish)
        before = asyncio.create_task(case.say(talk(6)))
        await wait_until(lambda: len(case.toy.summaries) == 1)
        await case.reload("response_headers: true\npolicies: {default: {summary: {max_calls: 3}}}\n")
        after = asyncio.create_task(case.say(talk(6)))
        await wait_until(lambda: case.gateway.app.generations.finishing == 1)
        finish.set()
        answers = await asyncio.gather(before, after)
        assert [answer.header("x-gateway-plan") for answer in answers] == ["pivot", "pivot"]
        assert len(case.toy.summaries) == 1
        assert len({seen.body for seen in case.toy.chats}) == 1
        await wait_until(lambda: case.gateway.app.generations.finishing == 0)


async def test_an_operator_compacts_at_the_next_request_after_a_reload() -> None:
    """The newest request that is in memory has an upstream and a credential that may not hold any more."""
    async with reloading(window=128_000) as case:
        answer = await case.say(talk(3))
        await case.reload("drain_seconds: 1\n")
        conversation = answer.header("x-gateway-conversation")
        assert conversation is not None
        told = await ask_to_compact(case.gateway, conversation)
        assert told == (202, {"id": conversation, "begins": "at the next request"})


async def test_settings_that_lead_to_the_gateway_itself_change_nothing() -> None:
    async with reloading() as case:
        own = make_settings(case.toy, more=ADMIN).replace(case.toy.base_url, case.gateway.base_url)
        with pytest.raises(SettingsError, match="points at the gateway itself"):
            await case.gateway.app.reload(load_text(own))
        assert (await case.say(talk(1))).is_whole
        assert case.gateway.app.generations.finishing == 0


async def test_the_admin_port_takes_the_new_token() -> None:
    async with reloading() as case:
        more = ADMIN.replace(TOKEN, "new-token")
        await case.gateway.app.reload(load_text(make_settings(case.toy, more=more)))
        assert (await ask_to_compact(case.gateway, "ab"))[0] == 401
        headers = {"Authorization": "Bearer new-token"}
        assert (await ask_to_compact(case.gateway, "ab", headers=headers))[0] == 404


async def test_a_gateway_that_stops_is_not_reloaded(caplog: pytest.LogCaptureFixture) -> None:
    async with ToyUpstream() as toy:
        async with running_gateway(make_settings(toy)) as gateway:
            pass
        caplog.set_level("INFO", "gateway.app")
        await gateway.app.reload(load_text(make_settings(toy, more="drain_seconds: 1\n")))
    assert "settings not reloaded: the gateway is stopping" in caplog.messages


async def test_an_unfinished_summary_of_earlier_settings_does_not_keep_the_gateway_from_stopping() -> None:
    async with ToyUpstream(window=16_000) as toy:
        async with running_gateway(make_settings(toy, more="drain_seconds: 0\n")) as gateway:
            case = Reloading(toy, gateway)
            toy.summary_delivery = Delivery(never=True)
            asking = asyncio.create_task(case.say(talk(6)))
            await wait_until(lambda: len(toy.summaries) == 1)
            await case.reload("drain_seconds: 0\nresponse_headers: false\n")
        assert gateway.app.is_idle
        await asyncio.gather(asking, return_exceptions=True)
