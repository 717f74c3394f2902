"""Where the gateway cannot help it says why: in a header of each response, and once in the log."""

import json
import logging

import aiohttp
import pytest

from tests.toy.chat import CHAT
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import ask
from tests.toy.upstream import ToyUpstream

_SYSTEM = "Always follow the rules of this project, all of them. " * 2_000


async def test_a_system_prompt_larger_than_the_window_is_named_in_the_header_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": "Hello"}]
    body = json.dumps({"model": "toy-model", "messages": messages}).encode()
    async with (
        ToyUpstream(window=16_384) as toy,
        running_gateway(make_settings(toy)) as gateway,
        aiohttp.ClientSession(headers=CHAT.headers("sk-toy")) as client,
    ):
        url = f"{gateway.base_url}{CHAT.path}"
        with caplog.at_level(logging.WARNING, "gateway.limits"):
            answers = [await ask(client, url, body) for _ in range(3)]
    for answer in answers:
        warning = answer.header("x-gateway-warning") or ""
        assert warning.startswith("system prompt and tools take ")
        assert warning.endswith(" of 16.4k tokens: there is nothing to replace")
    logged = [each.getMessage() for each in caplog.records if "nothing to replace" in each.getMessage()]
    assert len(logged) == 1
