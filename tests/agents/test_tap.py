"""The tap between a client and the gateway changes nothing and misses nothing."""

import json
from contextlib import suppress

import aiohttp
import pytest
from yarl import URL

from tests.agents.tap import Tap
from tests.toy.delivery import Delivery, Ending, RawAnswer
from tests.toy.upstream import ToyUpstream

_BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi."}]}).encode()
_HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sk-toy"}


async def test_an_exchange_passes_unchanged_and_is_remembered() -> None:
    async with ToyUpstream() as toy, Tap(toy.root_url) as tap, aiohttp.ClientSession() as client:
        path = "/v1/chat/completions?a=%2F"
        url = URL(tap.root_url + path, encoded=True)
        async with client.post(url, data=_BODY, headers=_HEADERS) as answer:
            body = await answer.read()
        assert body.endswith(b"data: [DONE]\n\n")
        (seen,), (tapped,) = toy.requests, tap.exchanges
        assert (seen.path, seen.body) == (tapped.path, tapped.body) == (path, _BODY)
        assert dict(seen.headers)["Authorization"] == "Bearer sk-toy"
        assert (tapped.status, tapped.broken) == (200, False)


async def test_a_refusal_passes_and_can_be_repeated() -> None:
    async with ToyUpstream() as toy, Tap(toy.root_url) as tap, aiohttp.ClientSession() as client:
        async with client.post(f"{tap.root_url}/v1/chat/completions", data=b"{", headers=_HEADERS) as answer:
            assert answer.status == 400
        await tap.repeat(tap.exchanges[0])
        assert [tapped.status for tapped in tap.exchanges] == [400, 400]
        assert toy.requests[0].body == toy.requests[1].body


@pytest.mark.parametrize("ending", ["close", "abort"])
async def test_an_answer_that_the_gateway_broke_off_is_told_from_a_client_that_has_read_enough(
    ending: Ending,
) -> None:
    broken = RawAnswer(
        pieces=(b"x" * 99,), length=False, delivery=Delivery(stop_after_bytes=50, ending=ending)
    )
    async with ToyUpstream() as toy, Tap(toy.root_url) as tap, aiohttp.ClientSession() as client:
        toy.intercept = lambda _: broken
        with suppress(aiohttp.ClientError):
            async with client.post(f"{tap.root_url}/v1/chat/completions", data=_BODY) as answer:
                await answer.read()
        toy.intercept = lambda _: None
        async with client.post(f"{tap.root_url}/v1/chat/completions", data=_BODY) as answer:
            await answer.content.readany()
            answer.close()
        assert [tapped.broken for tapped in tap.exchanges] == [True, False]
