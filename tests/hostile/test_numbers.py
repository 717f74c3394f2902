"""Numbers of an upstream or a client that no count can be: they are unknown, and the turn is recorded."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.toy.admin_port import ADMIN, get_json
from tests.toy.gateway import RunningGateway, running_gateway
from tests.wire_through.raw import RawUpstream, ask, render_answer, render_request, writing
from tests.wire_through.wiring import JSON_HEADERS

_CHAT, _MESSAGES, _RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
_REQUESTS = {
    _CHAT: '{"model":"m","max_tokens":%s,"messages":[{"role":"user","content":"%s"}]}',
    _MESSAGES: '{"model":"m","max_tokens":%s,"messages":[{"role":"user","content":"%s"}]}',
    _RESPONSES: '{"model":"m","max_output_tokens":%s,"input":"%s"}',
}
_USAGES = {
    _CHAT: '{"prompt_tokens":N,"completion_tokens":N,"prompt_tokens_details":{"cached_tokens":N}}',
    _MESSAGES: '{"input_tokens":N,"output_tokens":N,"cache_read_input_tokens":N}',
    _RESPONSES: '{"input_tokens":N,"output_tokens":N,"total_tokens":N}',
}
_ANSWERS = {
    _CHAT: '{"id":"a","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":'
    '{"role":"assistant","content":"Yes."}}],"usage":USAGE}',
    _MESSAGES: '{"id":"a","type":"message","role":"assistant","content":[{"type":"text","text":"Yes."}],'
    '"stop_reason":"end_turn","usage":USAGE}',
    _RESPONSES: '{"id":"resp_a","object":"response","status":"completed","output":[{"type":"message",'
    '"id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Yes."}]}],'
    '"usage":USAGE}',
}
_NO_COUNTS = [
    "9" * 400,
    "9" * 5_000,
    "1099511627777",
    "1e400",
    "1e30",
    "NaN",
    '"12"',
    "true",
    "-5",
    "0.5",
    "[]",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[tuple[RawUpstream, RunningGateway]]:
    async with RawUpstream() as upstream:
        settings = (
            f'store: "memory:"\n{ADMIN}upstreams:\n  default: {{base_url: "{upstream.base_url}", '
            f"discover: false}}\nmodels: [{{match: m, context: 100000}}]\n"
        )
        async with running_gateway(settings) as gateway:
            yield upstream, gateway


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", [_CHAT, _MESSAGES, _RESPONSES])
@pytest.mark.parametrize("number", _NO_COUNTS, ids=lambda number: f"{number[:13]} of {len(number)}")
async def test_a_turn_is_recorded_whatever_its_numbers_say(
    scene: tuple[RawUpstream, RunningGateway], path: str, number: str, caplog: pytest.LogCaptureFixture
) -> None:
    upstream, gateway = scene
    answer = _ANSWERS[path].replace("USAGE", _USAGES[path].replace("N", number)).encode()
    upstream.script = writing(render_answer(answer))
    before = {row["id"] for row in (await get_json(gateway, "/v1/conversations"))["conversations"]}
    for limit in ("100", number):
        body = (_REQUESTS[path] % (limit, f"{path} {number[:13]} {len(number)}".replace('"', ""))).encode()
        got = await ask(gateway.port, render_request(path, body, JSON_HEADERS))
        assert (got.status, got.body) == (200, answer)
        assert upstream.received[-1].body == body
    rows = await _find_new(gateway, before)
    assert len(rows) == 1
    page = await get_json(gateway, f"/v1/conversations/{rows[0]['id']}/requests")
    assert len(page["requests"]) == rows[0]["requests"] >= 1
    assert all(
        abs(value) <= 1 << 40 for row in page["requests"] for value in row.values() if type(value) is int
    )
    assert not [record for record in caplog.records if record.exc_info]


async def _find_new(gateway: RunningGateway, before: set[str]) -> list[dict[str, Any]]:
    for _ in range(100):
        rows = (await get_json(gateway, "/v1/conversations"))["conversations"]
        if found := [row for row in rows if row["id"] not in before]:
            return found
        await asyncio.sleep(0.05)
    return []
