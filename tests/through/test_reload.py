"""Requests finish on the settings that they began with, and nothing is lost when others take over."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from tests.toy.admin_calls import ask_to_compact, get
from tests.toy.delivery import Delivery
from tests.toy.house import ADMIN, ADMIN_TOKEN, make_settings
from tests.toy.product import Product, SettingsError, serve
from tests.toy.running import Answer, ask, wait_until
from tests.toy.upstream import ToyUpstream

_TENANTS = "tenants: [{name: acme, keys: [%s]}]\n"


def talk(turns: int, chars: int = 4_000) -> list[dict[str, str]]:
    """A task, then turns: a reply of a few words and a message of a user with this many characters."""
    messages = [{"role": "user", "content": "Fix it."}]
    for at in range(turns):
        messages.append({"role": "assistant", "content": f"Step {at} is done."})
        messages.append({"role": "user", "content": (f"{at} abcdefg " * chars)[:chars]})
    return messages


def fill(toy: ToyUpstream) -> list[dict[str, str]]:
    """A talk that fits the window, and is past the line at which it is compacted."""
    turns = next(turns for turns in range(99) if toy.counter.messages(talk(turns)) > 0.82 * toy.window)
    return talk(turns)


@dataclass
class Reloading:
    toy: ToyUpstream
    product: Product

    async def reload(self, more: str = "", toy: ToyUpstream | None = None) -> None:
        await self.product.reload(make_settings(toy or self.toy, more=ADMIN + more))

    async def say(self, messages: Sequence[object], key: str = "sk-toy", *, stream: bool = False) -> Answer:
        body = json.dumps({"model": "toy-model", "messages": messages, "stream": stream}).encode()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client:
            return await ask(client, f"{self.product.base_url}/chat/completions", body)


@asynccontextmanager
async def reloading(more: str = "", window: int = 16_000) -> AsyncIterator[Reloading]:
    async with ToyUpstream(window=window) as toy, serve(make_settings(toy, more=ADMIN + more)) as product:
        yield Reloading(toy, product)


async def test_a_stream_under_way_ends_at_its_upstream_and_the_next_request_goes_to_the_new_one() -> None:
    async with reloading() as case, ToyUpstream() as other:
        sent = asyncio.Event()
        case.toy.delivery = Delivery(after=sent)
        stream = asyncio.create_task(case.say(talk(1), stream=True))
        await wait_until(lambda: len(case.toy.chats) == 1)
        await case.reload(toy=other)
        assert (await case.say(talk(1))).is_whole
        assert (len(case.toy.chats), len(other.chats)) == (1, 1)
        sent.set()
        assert (await stream).is_whole
        for at in range(5):
            await case.reload(toy=(case.toy, other)[at % 2])
            assert (await case.say(talk(1))).is_whole
        assert (len(case.toy.chats), len(other.chats)) == (4, 3)


async def test_connections_stay_if_no_upstream_has_changed() -> None:
    async with reloading(_TENANTS % "sk-toy") as case:
        await case.say(talk(1))
        await case.reload(_TENANTS % "sk-toy, sk-new")
        assert (await case.say(talk(1), "sk-new")).is_whole
        assert len({seen.port for seen in case.toy.chats}) == 1


async def test_a_key_is_rotated_without_losing_the_summary_of_its_tenant() -> None:
    async with reloading(_TENANTS % "sk-old") as case:
        long = talk(6)
        first = await case.say(long, "sk-old")
        assert first.header("x-gateway-plan") == "pivot"
        await case.product.at_rest()
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
        await case.reload("policies: {default: {summary: {max_calls: 3}}}\n")
        after = asyncio.create_task(case.say(talk(6)))
        await asyncio.sleep(0.05)
        finish.set()
        answers = await asyncio.gather(before, after)
        assert [answer.header("x-gateway-plan") for answer in answers] == ["pivot", "pivot"]
        assert len(case.toy.summaries) == 1
        assert len({seen.body for seen in case.toy.chats}) == 1


async def test_a_new_policy_holds_from_the_next_request_on() -> None:
    async with reloading("policies: {default: {compaction: {auto: false}}}\n") as case:
        long = fill(case.toy)
        assert (await case.say(long)).header("x-gateway-plan") == "passthrough"
        await case.reload("policies: {default: {summary: {method: digest}}}\n")
        assert (await case.say(long)).header("x-gateway-plan") == "digest"
        await case.reload("response_headers: false\n")
        assert (await case.say(long)).header("x-gateway-plan") is None
    assert case.toy.summaries == []


async def test_a_new_window_holds_from_the_next_request_on() -> None:
    async with reloading(window=64_000) as case:
        assert (await case.say(talk(20))).header("x-gateway-plan") == "passthrough"
        case.toy.window = 16_000
        await case.reload()
        assert (await case.say(talk(20))).header("x-gateway-plan") == "pivot"
    assert [seen.refusal for seen in case.toy.requests if seen.refusal] == []


async def test_an_operator_compacts_at_the_next_request_after_a_reload() -> None:
    """The newest request that is in memory has an upstream and a credential that may not hold any more."""
    async with reloading(window=128_000) as case:
        answer = await case.say(talk(3))
        await case.reload("drain_seconds: 1\n")
        conversation = answer.header("x-gateway-conversation")
        assert conversation is not None
        told = await ask_to_compact(case.product, conversation)
        assert told == (202, {"id": conversation, "begins": "at the next request"})


async def test_no_summary_is_asked_for_with_what_a_request_under_way_at_a_reload_had() -> None:
    """It ends when its upstream and its credential do not hold any more."""
    async with reloading(window=128_000) as case, ToyUpstream(window=128_000) as other:
        sent = asyncio.Event()
        case.toy.delivery = Delivery(after=sent)
        asking = asyncio.create_task(case.say(talk(3), stream=True))
        await wait_until(lambda: len(case.toy.chats) == 1)
        await case.reload(toy=other)
        sent.set()
        conversation = (await asking).header("x-gateway-conversation")
        await case.product.at_rest()
        assert conversation is not None
        told = await ask_to_compact(case.product, conversation)
        assert told == (202, {"id": conversation, "begins": "at the next request"})
        while not other.summaries:  # on a slow machine a request may leave the command to the next one
            assert (await case.say(talk(3))).is_whole
            await case.product.at_rest()
    assert case.toy.summaries == []


async def test_settings_that_lead_to_the_gateway_itself_or_are_wrong_change_nothing() -> None:
    async with reloading() as case:
        own = make_settings(case.toy, more=ADMIN).replace(case.toy.base_url, case.product.base_url)
        with pytest.raises(SettingsError, match="points at the gateway itself"):
            await case.product.reload(own)
        with pytest.raises(SettingsError, match=r"unknown key 'drain_secondz'.*'drain_seconds'"):
            await case.reload("drain_secondz: 1\n")
        assert (await case.say(talk(1))).is_whole
        assert (await case.say(fill(case.toy))).header("x-gateway-plan") == "pivot"


async def test_the_admin_port_takes_the_new_token_and_none_is_taken_away() -> None:
    async with reloading() as case:
        await case.product.reload(make_settings(case.toy, more=ADMIN.replace(ADMIN_TOKEN, "new-token")))
        assert (await get(case.product, "/conversations"))[0] == 401
        assert (await get(case.product, "/conversations", "new-token"))[0] == 200
        await case.product.reload(make_settings(case.toy, more="admin: {port: 0}\n"))
        assert (await get(case.product, "/conversations", None))[0] == 401


async def test_what_is_opened_at_the_start_stays_and_is_named_without_its_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with reloading() as case:
        caplog.set_level("INFO", "gateway.reload")
        await case.reload("retention: {days: 93}\ncache: {bodies: 3}\nresponse_headers: false\n")
        assert (await case.say(talk(1))).header("x-gateway-plan") is None
    told = "\n".join(record.getMessage() for record in caplog.records if "reload" in record.name)
    for name in ("response_headers", "cache.bodies", "retention.days"):
        assert name in told
    assert "93" not in told and "hold from the next start on" in told


async def test_an_unfinished_summary_of_earlier_settings_does_not_keep_the_gateway_from_stopping() -> None:
    async with ToyUpstream(window=16_000) as toy:
        async with serve(make_settings(toy, more="drain_seconds: 0\n")) as product:
            case = Reloading(toy, product)
            toy.summary_delivery = Delivery(never=True)
            asking = asyncio.create_task(case.say(talk(6)))
            await wait_until(lambda: len(toy.summaries) == 1)
            await product.reload(make_settings(toy, more="drain_seconds: 0\nresponse_headers: false\n"))
            async with asyncio.timeout(30):
                await product.stop()
        await asyncio.gather(asking, return_exceptions=True)
