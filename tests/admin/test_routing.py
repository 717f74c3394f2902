"""Queries and bodies are checked before they are used. What is not understood is a problem, never a 500."""

import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.admin.routing import make_routes
from tests.toy.admin_port import ADMIN_WITHOUT_TOKEN, get
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.upstream import ToyUpstream

_LIST = "/v1/conversations"
_HUGE = "9" * 400


def test_an_operation_without_a_handler_is_found_at_the_start() -> None:
    with pytest.raises(KeyError):
        make_routes({})


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=501",
        f"limit={_HUGE}",
        f"limit=-{_HUGE}",
        "limit=",
        "limit=ten",
        "limit=1.5",
        "limit=1e400",
        "limit=NaN",
        "limit=%00",
        "limit=0x10",
        "limit=001",
        "cursor=",
        "cursor=x",
        "cursor=%00%ff",
        "cursor=%F0%9F%90%9F",
        "cursor=AAAA",
        "cursor=" + "A" * 300,
        "cursor=../../etc/passwd",
        "q=" + "x" * 257,
        "tenant=" + "x" * 257,
        "limit=1&cursor=%E2%82",
    ],
)
async def test_a_query_that_is_not_understood_is_a_problem_that_quotes_nothing(query: str) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN_WITHOUT_TOKEN)) as gateway:
        status, body = await get(gateway, f"{_LIST}?{query}")
    problem = json.loads(body)
    assert (status, problem["status"], problem["title"]) == (400, 400, "Bad Request")
    assert len(problem["detail"]) < 200 and "xxxx" not in problem["detail"]


@pytest.mark.parametrize("query", ["", "?", "?limit=1", "?limit=500", "?other=1", "?q=%00", "?q=%FF"])
async def test_other_queries_have_a_list(query: str) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN_WITHOUT_TOKEN)) as gateway:
        assert await get(gateway, f"{_LIST}{query}") == (200, b'{"conversations":[],"next":null}')


async def post(gateway: RunningGateway, path: str, body: io.BytesIO) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{gateway.admin_port}/api/v1{path}"
    async with aiohttp.ClientSession() as client, client.post(url, data=body) as response:
        return response.status, await response.json(content_type=None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"{",
        b"[]",
        b"null",
        b'"tag"',
        b"\xff\xfe",
        b'{"tag": "x"}',
        b'{"tag": 1}',
        b'{"tag": "%s", "more": 1}' % (b"0" * 32),
        b'{"tag": "\\ud800"}',
        b"[" * 100_000,
        b'{"tag": "' + b"x" * 1_100_000 + b'"}',
    ],
    ids=range(13),
)
async def test_a_body_that_is_not_understood_is_a_problem(body: bytes) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN_WITHOUT_TOKEN)) as gateway:
        status, problem = await post(gateway, "/tenants/purge", io.BytesIO(body))
    assert (status, problem["status"]) == (400, 400)
    assert len(problem["detail"]) < 200


@pytest.mark.parametrize(
    "name", ["0123456789abcdef", "..", "%2e%2e", "%C3%A9", "%00", "*", "%7B%7D", "a:b", "x" * 5_000]
)
@pytest.mark.parametrize("store", ["memory:", "disk:{}"])
async def test_a_conversation_of_any_name_is_not_found(name: str, store: str, tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        settings = make_settings(toy, store=store.format(tmp_path / "state"), more=ADMIN_WITHOUT_TOKEN)
        async with running_gateway(settings) as gateway:
            for more in ("", "/requests", "/log", "/originals", "/nothing"):
                assert (await get(gateway, f"{_LIST}/{name}{more}"))[0] == 404
            assert (await get(gateway, f"{_LIST}/{name}/originals/{'0' * 64}"))[0] in (403, 404)
            assert (await post(gateway, f"/conversations/{name}/compact", io.BytesIO(b"")))[0] == 404
