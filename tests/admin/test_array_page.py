"""Both arrays over HTTP: `tests/end_to_end/test_arrays.py` compares them with the wire."""

import logging

import aiohttp
import pytest

from tests.toy.agent import make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0, token: sesame}\n"
_HEADERS = {"Authorization": "Bearer sesame"}


async def test_each_message_says_what_became_of_it_and_the_view_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway.admin")
    session = make_session(3, 3)
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        run = await run_session(session, gateway.base_url, toy)
        url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}/messages"
        async with aiohttp.ClientSession(headers=_HEADERS) as client, client.get(url) as response:
            page = await response.json()
    assert response.headers["Cache-Control"] == "no-store"
    assert (page["id"], page["format"], page["next"]) == (run.conversation, "chat", None)
    assert {row["fate"] for row in page["received"]} == {"sent"}
    assert {row["kind"] for row in page["sent"]} == {"message"}
    assert page["received"][0]["position"] is None and page["received"][1]["position"] == 0
    assert all(row["tokens"] > 0 and row["bytes"] > 0 for row in page["received"])
    lines = [record.getMessage() for record in caplog.records]
    assert f"texts shown: conversation={run.conversation} what=messages to=127.0.0.1" in lines


@pytest.mark.parametrize("query", ["?start=-1", "?limit=0", "?limit=501", "?limit=x"])
async def test_a_part_that_cannot_be_is_400(query: str) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        run = await run_session(make_session(1, 3), gateway.base_url, toy)
        url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}/messages{query}"
        async with aiohttp.ClientSession(headers=_HEADERS) as client, client.get(url) as response:
            assert response.status == 400


async def test_a_body_that_is_not_in_memory_is_409() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        run = await run_session(make_session(1, 3), gateway.base_url, toy)
        gateway.parts.foundation.registry.forget_turns()
        base = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}"
        async with aiohttp.ClientSession(headers=_HEADERS) as client:
            async with client.get(f"{base}/messages") as response:
                assert response.status == 409
                assert "not in memory" in (await response.json())["detail"]
            async with client.put(f"{base}/summaries/ab", json={"text": "x"}) as response:
                assert response.status == 409
