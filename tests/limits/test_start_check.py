"""What the log says at the start about the address of an upstream."""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from socket import create_server

import pytest
from pydantic import SecretStr

from gateway.limits.start_check import StartCheck
from gateway.settings import UpstreamSettings, load_settings
from gateway.upstream.internal_client import open_client
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.upstream import Seen, ToyUpstream

_UPSTREAM = load_settings(None, {}, upstream="http://replaced.example").upstreams["default"]
_LIST = RawAnswer(pieces=(json.dumps({"data": [{"id": "m", "max_model_len": 8_192}, {"id": "n"}]}).encode(),))
_ABSENT = RawAnswer(status=404, pieces=(b'{"detail": "Not Found"}',))
_PAGE = RawAnswer(headers=(("Content-Type", "text/html"),), pieces=(b"<html>",))


async def check(*upstreams: UpstreamSettings) -> None:
    client = open_client()
    try:
        await StartCheck(upstreams, client).run()
    finally:
        await client.aclose()


async def check_toy(
    answers: Mapping[str, RawAnswer], path: str, api_key: str | None = None
) -> tuple[list[Seen], str]:
    """What was asked, and where the toy is."""
    async with ToyUpstream() as toy:
        toy.raw_answers = {("GET", each): answer for each, answer in answers.items()}
        key = SecretStr(api_key) if api_key is not None else None
        await check(replace(_UPSTREAM, base_url=toy.root_url + path, api_key=key))
        return toy.requests, toy.root_url


@pytest.mark.parametrize("absent", [_ABSENT, _PAGE, RawAnswer(status=405)])
@pytest.mark.parametrize(("path", "other"), [("", "/v1"), ("/v1", "")])
async def test_an_api_at_the_other_address_is_named(
    caplog: pytest.LogCaptureFixture, absent: RawAnswer, path: str, other: str
) -> None:
    answers = {f"{path}/models": absent, f"{other}/models": _LIST}
    seen, url = await check_toy(answers, path)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"upstream 'default' answers at {url}{other}/models, not at {url}{path}/models "
        f"(status {absent.status}): write base_url: {url}{other}"
    )
    assert [each.path for each in seen] == [f"{path}/models", f"{other}/models"]


@pytest.mark.parametrize("status", [401, 403])
async def test_an_api_that_wants_a_key_is_there(caplog: pytest.LogCaptureFixture, status: int) -> None:
    seen, _ = await check_toy({"/models": RawAnswer(status=status), "/v1/models": _LIST}, "")
    assert [each.path for each in seen] == ["/models"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_list_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen, url = await check_toy({"/v1/models": _LIST}, "/v1")
    assert f"answers at {url}/v1 and names the windows of 1 models" in caplog.text
    assert len(seen) == 1
    assert "authorization" not in {name.lower() for name, _ in seen[0].headers}


async def test_a_key_that_is_refused_is_named_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    seen, _ = await check_toy({"/v1/models": RawAnswer(status=401)}, "/v1", api_key="sk-own")
    assert ("Authorization", "Bearer sk-own") in seen[0].headers
    assert "upstream 'default' refuses its api_key (status 401)" in caplog.text
    assert "sk-own" not in caplog.text


async def test_an_upstream_for_messages_is_asked_in_anthropics_way() -> None:
    async with ToyUpstream() as toy:
        await check(
            replace(
                _UPSTREAM,
                base_url=toy.base_url,
                api_key=SecretStr("sk-own"),
                formats=frozenset({"messages"}),
            )
        )
        headers = dict(toy.requests[0].headers)
    assert headers["anthropic-version"] and "sk-own" in headers.values()


async def test_a_redirect_is_named_and_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    place = "https://elsewhere.example/v1/models"
    redirect = RawAnswer(status=308, headers=(("Location", place),))
    seen, url = await check_toy({"/v1/models": redirect}, "/v1")
    assert f"redirects {url}/v1/models to '{place}'" in caplog.text
    assert len(seen) == 1


async def test_an_upstream_without_a_list_is_no_mistake(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await check_toy({"/v1/models": _ABSENT, "/models": _ABSENT}, "/v1")
    assert [record.levelno for record in caplog.records if record.name == "gateway.start"] == [logging.INFO]


async def test_an_upstream_that_cannot_be_reached_is_named_and_the_others_are_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with closing(create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    gone = replace(_UPSTREAM, name="gone", base_url=f"http://127.0.0.1:{port}/v1")
    async with ToyUpstream() as toy:
        toy.raw_answers = {("GET", "/v1/models"): _LIST}
        tls = replace(_UPSTREAM, name="tls", base_url=toy.base_url.replace("http:", "https:"))
        await check(gone, tls, replace(_UPSTREAM, base_url=toy.base_url))
    lines = sorted(record.getMessage() for record in caplog.records if record.name == "gateway.start")
    assert "upstream 'default' answers at" in lines[0]
    assert "connection refused" in lines[1] and "is it running" in lines[1]
    assert "TLS failed" in lines[2]
    assert "Error" not in caplog.text


async def test_a_silent_upstream_does_not_keep_the_start_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers = {("GET", "/v1/models"): replace(_LIST, delivery=Delivery(never=True))}
        running = asyncio.create_task(check(replace(_UPSTREAM, base_url=toy.base_url)))
        while not toy.requests:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert caplog.records == []
