"""What nobody means: every operation of a real conversation refuses it with a problem, never with a 500."""

import io
import json

import aiohttp
import pytest

from tests.toy.admin_port import ADMIN, TOKEN
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

_HUGE = "9" * 400
_KEY = "{key}"
_CASES = [
    *(
        ("GET", f"/messages?{name}={value}", b"")
        for name in ("start", "limit")
        for value in ("-1", "x", "", "1.5")
    ),
    ("GET", f"/messages?limit={_HUGE}", b""),
    ("GET", f"/messages?start=-{_HUGE}", b""),
    ("GET", f"/originals?limit={_HUGE}", b""),
    ("GET", "/originals?cursor=%ff", b""),
    *(("GET", f"/search?q={q}", b"") for q in ("", "x" * 1_001)),
    *(("GET", f"/search?q=x&limit={limit}", b"") for limit in ("0", "51", "x", "-1", _HUGE)),
    ("GET", "/search", b""),
    *(
        (method, path, body)
        for method, path in (("PUT", f"/summaries/{_KEY}"), ("POST", f"/summaries/{_KEY}/restore"))
        for body in (b"", b"{", b"[]", b"null", b"\xff", b'{"text": 1}', b'{"version": "1"}', b"[" * 50_000)
    ),
    ("PUT", f"/summaries/{_KEY}", b'{"text": ""}'),
    ("PUT", f"/summaries/{_KEY}", b'{"text": " \\n\\t"}'),
    ("PUT", f"/summaries/{_KEY}", b'{"text": "\\ud800"}'),
    ("PUT", f"/summaries/{_KEY}", b'{"text": "x", "more": 1}'),
    ("PUT", f"/summaries/{_KEY}", b'{"text": "x", "based_on": %s}' % _HUGE.encode()),
    ("PUT", f"/summaries/{_KEY}", b'{"text": "%s"}' % (b"word " * 80_000)),
    ("PUT", f"/summaries/{_KEY}", b'{"text": "%s"}' % (b"x" * 600_000)),
    ("PUT", "/summaries/0", b'{"text": "x"}'),
    ("PUT", "/summaries/..", b'{"text": "x"}'),
    ("POST", f"/summaries/{_KEY}/restore", b'{"version": -1}'),
    ("POST", f"/summaries/{_KEY}/restore", b'{"version": 0}'),
    ("POST", f"/summaries/{_KEY}/restore", b'{"version": %s}' % _HUGE.encode()),
    ("POST", "/compact", b'{"instructions": 1}'),
    ("POST", "/compact", b'{"instructions": "%s"}' % (b"x" * 100_000)),
    ("POST", "/compact", b'{"instructions": "\\ud800"}'),
    ("DELETE", "/summaries", b""),
    ("PATCH", "", b""),
]


@pytest.mark.timeout(300)
async def test_nothing_that_is_asked_is_a_500() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=ADMIN)) as gateway,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as client,
    ):
        run = await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
        await gateway.settle()
        url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}"
        listed = json.loads(await (await client.get(f"{url}/summaries")).read())
        key = listed["summaries"][0]["key"]
        for method, path, body in _CASES:
            asked = f"{url}{path.replace(_KEY, key)}"
            async with client.request(method, asked, data=io.BytesIO(body)) as response:
                what = f"{method} {path[:80]} {body[:80]!r}"
                assert response.status in (400, 404, 405, 409, 422), f"{what}: {response.status}"
                assert response.content_type == "application/problem+json", what
                problem = json.loads(await response.read())
                assert problem["status"] == response.status and len(problem["detail"]) < 500, what
        # Far behind the end there is nothing, and the summary is as it was.
        async with client.get(f"{url}/messages?start={_HUGE}") as response:
            assert response.status in (200, 400)
        assert json.loads(await (await client.get(f"{url}/summaries")).read()) == listed
