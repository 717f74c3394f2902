"""Texts of conversations are shown where the settings allow it, each view is logged, and no text strays."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.toy.admin_port import ADMIN, ADMIN_WITHOUT_TOKEN, TOKEN
from tests.toy.documented_api import APIAnswer, DocumentedAPI, open_documented_api
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import ask
from tests.toy.upstream import ToyUpstream

_TENANTS = (
    "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue], policy: open}\n"
    "policies: {open: {show_texts: true}}\n"
)
_WORD = "canary-of-%s-7461"


def make_history(tenant: str, turns: int) -> list[dict[str, str]]:
    """Each message holds the tenant's word, also in what is quoted of it."""
    word = _WORD % tenant
    messages = [{"role": "user", "content": f"Build {word}.py for {word}."}]
    for at in range(turns):
        messages.append({"role": "assistant", "content": f"Step {at} of {word} is done."})
        messages.append({"role": "user", "content": f"{word} " * 120})
    return messages


async def talk(gateway: RunningGateway, tenant: str) -> str:
    """The conversation of two requests, which are both sent with a summary."""
    answers = []
    for turns in (10, 11):
        body = json.dumps({"model": "toy-model", "messages": make_history(tenant, turns)}).encode()
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer sk-{tenant}"}) as client:
            answers.append(await ask(client, f"{gateway.base_url}/chat/completions", body))
    assert [answer.header("x-gateway-plan") for answer in answers] == ["pivot", "pivot"]
    return answers[-1].header("x-gateway-conversation") or ""


@asynccontextmanager
async def open_office(admin: str) -> AsyncIterator[tuple[DocumentedAPI, dict[str, str]]]:
    """A gateway with two tenants, one of which shows its texts, and their conversations: both compacted."""
    async with (
        ToyUpstream(window=8_000) as toy,
        running_gateway(make_settings(toy, more=admin + _TENANTS)) as gateway,
    ):
        found = {tenant: await talk(gateway, tenant) for tenant in ("red", "blue")}
        await gateway.settle()
        token = TOKEN if admin == ADMIN else ""
        yield await open_documented_api(f"http://127.0.0.1:{gateway.admin_port}", token), found


async def find_digest(api: DocumentedAPI, identity: str) -> str:
    taken = (await api.call("listOriginals", names={"id": identity})).json()["taken"]
    return str(taken[0]["messages"][0]["digest"])


async def show_original(
    api: DocumentedAPI, identity: str, headers: dict[str, str] | None = None
) -> APIAnswer:
    names = {"id": identity, "digest": await find_digest(api, identity)}
    return await api.call("showOriginal", headers=headers, names=names)


async def read_everything(api: DocumentedAPI, identity: str) -> bytes:
    """What every operation that only reads says of a conversation."""
    names, read = {"id": identity, "digest": await find_digest(api, identity)}, b""
    names["key"] = await find_key(api, identity)
    for method, _, operation in api.list_operations():
        if method == "GET":
            read += (await api.call(operation["operationId"], names=names)).body
    return read


async def find_key(api: DocumentedAPI, identity: str) -> str:
    """Of its summary."""
    operations = {operation["operationId"] for _, _, operation in api.list_operations()}
    if "listSummaries" not in operations:
        return ""
    listed = (await api.call("listSummaries", names={"id": identity})).json()
    return str(listed["summaries"][0]["key"])


async def test_without_a_token_only_a_policy_that_says_so_shows_texts() -> None:
    async with open_office(ADMIN_WITHOUT_TOKEN) as (api, found):
        refused = await show_original(api, found["red"])
        shown = await show_original(api, found["blue"])
        pages = {
            tenant: (await api.call("showConversation", names={"id": identity})).json()["texts"]
            for tenant, identity in found.items()
        }
    detail = refused.json()["detail"]
    assert refused.status == 403
    assert "admin.token" in detail and "show_texts" in detail
    assert pages == {
        "red": {"allowed": False, "reason": detail},
        "blue": {"allowed": True, "reason": None},
    }
    assert shown.status == 200 and (_WORD % "blue").encode() in shown.body
    assert shown.headers["Cache-Control"] == "no-store"


@asynccontextmanager
async def open_laptop(more: str = "") -> AsyncIterator[tuple[RunningGateway, DocumentedAPI, str]]:
    """A gateway for one person, without a token and without tenants, and a compacted conversation."""
    async with (
        ToyUpstream(window=8_000) as toy,
        running_gateway(make_settings(toy, more=ADMIN_WITHOUT_TOKEN + more)) as gateway,
    ):
        identity = await talk(gateway, "red")
        await gateway.settle()
        yield gateway, await open_documented_api(f"http://127.0.0.1:{gateway.admin_port}", ""), identity


async def test_on_loopback_without_tenants_texts_and_titles_are_shown() -> None:
    async with open_laptop() as (_, api, identity):
        shown = await show_original(api, identity)
        page = (await api.call("showConversation", names={"id": identity})).json()
        (row,) = (await api.call("listConversations")).json()["conversations"]
    assert shown.status == 200 and (_WORD % "red").encode() in shown.body
    assert page["texts"] == {"allowed": True, "reason": None}
    assert row["title"] == "We followed the task"


async def test_a_policy_that_says_no_hides_texts_on_loopback_too() -> None:
    async with open_laptop("policies: {default: {show_texts: false}}\n") as (_, api, identity):
        assert (await show_original(api, identity)).status == 403
        (row,) = (await api.call("listConversations")).json()["conversations"]
    assert row["title"] is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example:8081"},
        {"Host": "127.0.0.1.rebound.example"},
        {"Origin": "http://rebound.example"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_site_is_shown_no_text_without_a_token(headers: dict[str, str]) -> None:
    """Also one whose name leads to this machine now."""
    async with open_laptop() as (gateway, api, identity):
        digest = await find_digest(api, identity)
        for path in ("", f"/{identity}", f"/{identity}/originals/{digest}", f"/{identity}/summaries"):
            url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations{path}"
            async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as answer:
                assert answer.status == 403 and _WORD % "red" not in await answer.text()


async def test_a_token_shows_all_texts_to_those_who_have_it() -> None:
    async with open_office(ADMIN) as (api, found):
        assert [(await show_original(api, each)).status for each in found.values()] == [200, 200]
        names = {"id": found["blue"], "digest": await find_digest(api, found["blue"])}
        assert (await api.call("showOriginal", headers={}, names=names)).status == 401


@pytest.mark.parametrize("admin", [ADMIN, ADMIN_WITHOUT_TOKEN])
async def test_no_answer_has_a_text_of_another_tenant_or_one_that_is_not_shown(admin: str) -> None:
    async with open_office(admin) as (api, found):
        read = {tenant: await read_everything(api, identity) for tenant, identity in found.items()}
        digest = await find_digest(api, found["red"])
        other = await api.call("showOriginal", names={"id": found["blue"], "digest": digest})
    red, blue = ((_WORD % tenant).encode() for tenant in found)
    assert red not in read["blue"] and blue not in read["red"]
    assert blue in read["blue"]
    assert (red in read["red"]) == (admin == ADMIN)
    assert other.status == 404 and red not in other.body


async def test_each_view_is_one_line_of_the_log_without_the_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with open_office(ADMIN_WITHOUT_TOKEN) as (api, found):
        await show_original(api, found["red"])
        await api.call("showOriginal", names={"id": found["blue"], "digest": "0" * 64})
        assert "texts shown" not in caplog.text
        # Who asked is who has the connection, whatever the request says.
        await show_original(api, found["blue"], {"X-Gateway-Peer": "10.9.9.9"})
    (line,) = [record for record in caplog.records if "texts shown" in record.getMessage()]
    assert (line.name, line.levelname) == ("gateway.admin", "INFO")
    assert line.getMessage() == f"texts shown: conversation={found['blue']} what=original to=127.0.0.1"
    assert "canary" not in caplog.text
