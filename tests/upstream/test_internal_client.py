"""Calls of the gateway's own carry no cookies and follow no redirects."""

import pytest

from gateway.upstream.internal_client import make_internal_headers, open_client
from tests.wire_through.raw import RawUpstream, render_answer, writing


async def test_a_cookie_is_never_sent_back() -> None:
    script = writing(render_answer(b"{}", [("Set-Cookie", "a=1")]))
    async with RawUpstream(script) as raw, open_client() as client:
        for _ in range(2):
            await client.get(raw.base_url)
    assert [seen.head.values("cookie") for seen in raw.received] == [[], []]


async def test_a_redirect_is_not_followed() -> None:
    async with RawUpstream() as raw, open_client() as client:
        location = [("Location", f"{raw.base_url}/elsewhere")]
        raw.script = writing(render_answer(b"", location, "HTTP/1.1 307 Temporary Redirect"))
        assert (await client.post(raw.base_url, content=b"{}")).status_code == 307
        assert len(raw.received) == 1


async def test_a_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with RawUpstream() as raw, open_client() as client:
        assert (await client.get(raw.base_url)).status_code == 200


def test_headers_that_describe_the_callers_own_request_are_not_sent() -> None:
    sent = [("Authorization", "Bearer k"), ("Content-Length", "3"), ("Idempotency-Key", "i"), ("X-A", "é")]
    assert make_internal_headers(sent) == [(b"Authorization", b"Bearer k"), (b"X-A", "é".encode())]


def test_header_bytes_that_are_not_valid_text_come_out_unchanged() -> None:
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert make_internal_headers([("X-Old", odd)]) == [(b"X-Old", b"caf\xe9")]
