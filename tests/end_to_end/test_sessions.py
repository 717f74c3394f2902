"""What sessions worked on, through whole gateways: restarts, replicas, tenants, deletion, title calls."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from gateway.store.keys import make_tag
from gateway.tenants import make_tenant_id
from tests.builders.chat import JSON
from tests.builders.sessions import ask, call, edit
from tests.toy.admin_port import ADMIN, get, get_json
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.replicas import running_replicas
from tests.toy.reply import Reply
from tests.toy.sessions import SESSION, TASK, play
from tests.toy.upstream import ToyUpstream

_TENANTS: Final = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"


async def show(gateway: RunningGateway, identity: str) -> Any:
    """Without what is of this moment."""
    page = await get_json(gateway, f"/conversations/{identity}/summary")
    diff = await get_json(gateway, f"/conversations/{identity}/diff")
    return {**page, "updated": None, "diff": diff["files"]}


@pytest.mark.system(20)
async def test_a_session_outlives_a_restart_and_goes_on(tmp_path: Path) -> None:
    async with ToyUpstream(window=64_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}", more=ADMIN)
        async with running_gateway(settings) as gateway:
            identity = await play(gateway, SESSION[:5])
            first = await show(gateway, identity)
        async with running_gateway(settings) as gateway:
            assert await show(gateway, identity) == first
            assert (await get_json(gateway, "/conversations"))["conversations"][0]["title"] == TASK
            assert await play(gateway, SESSION, first=5) == identity
            resumed = await show(gateway, identity)
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        whole = await show(gateway, await play(gateway, SESSION))
    assert resumed == whole
    assert {file["path"] for file in whole["files"]} == {"/a.py", "/b.py"}


@pytest.mark.system(20)
async def test_each_of_several_replicas_shows_the_whole_session() -> None:
    async with ToyUpstream(window=64_000) as toy, running_replicas(toy, 2) as replicas:
        for end in (1, 3, 5, 7, 9):
            gateway = replicas.gateways[end % 4 // 2]
            identity = await play(gateway, SESSION[:end], first=end - 1)
        shown = [await load_files(gateway, identity) for gateway in replicas.gateways]
    assert shown[0] == shown[1] == [("/a.py", 3, 2), ("/b.py", 1, 1)]


async def load_files(gateway: RunningGateway, identity: str) -> list[tuple[str, int, int]]:
    session = await gateway.parts.foundation.sessions.load(_find_tag(gateway, identity), identity)
    assert session is not None
    return [(file.path, file.additions, file.deletions) for file in session.files]


def _find_tag(gateway: RunningGateway, identity: str) -> str:
    known = gateway.parts.foundation.activity.find(identity)
    assert known is not None
    return make_tag(known.owner)


@pytest.mark.system(20)
async def test_nothing_of_a_session_reaches_another_tenant() -> None:
    """Both send the same history, with the same label, so all that differs is whose it is."""
    label = {"x-gateway-session": "shared"}
    canary = [ask(TASK), *edit(1, "/CANARY", "a\n", "b\n"), *call(2, "bash", {"command": "CANARY"}, "ok")]
    async with (
        ToyUpstream(window=64_000) as toy,
        running_gateway(make_settings(toy, more=ADMIN + _TENANTS)) as gateway,
    ):
        red = await play(gateway, canary, key="sk-red", headers=label)
        await name_session(gateway, toy, "CANARY", key="sk-red", headers=label)
        blue = await play(gateway, SESSION, key="sk-blue", headers=label)
        shown, hers = await show(gateway, blue), await show(gateway, red)
        keeper = gateway.parts.foundation.sessions
        crossed = await keeper.load(make_tag(make_tenant_id("blue")), red)
    assert red != blue and crossed is None
    assert "CANARY" not in json.dumps(shown) and shown["title"] == TASK
    assert hers["title"] == "CANARY" and hers["files"][0]["path"] == "/CANARY"


async def name_session(
    gateway: RunningGateway, toy: ToyUpstream, title: str, *, key: str = "sk-toy", headers: dict[str, str]
) -> None:
    """As opencode does, in parallel to the first request."""
    before, toy.reply = toy.reply, lambda _: Reply(text=title)
    body = {
        "model": "toy-model",
        "messages": [
            {"role": "system", "content": "You are a title generator. You output ONLY a thread title."},
            {"role": "user", "content": "Generate a title for this conversation:\n"},
            {"role": "user", "content": TASK},
        ],
        "stream": True,
    }
    sent = {"Authorization": f"Bearer {key}", **headers}
    async with (
        aiohttp.ClientSession(headers=sent) as client,
        client.post(f"{gateway.base_url}/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        await response.read()
    toy.reply = before
    await gateway.settle()


@pytest.mark.system(20)
@pytest.mark.parametrize("headers", [{}, {"x-session-id": "ses_1"}])
async def test_the_clients_own_title_call_names_the_session(headers: dict[str, str]) -> None:
    async with ToyUpstream(window=64_000) as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        identity = await play(gateway, SESSION[:3], headers=headers)
        assert (await show(gateway, identity))["title_from"] == "message"
        await name_session(gateway, toy, "Parser of dates", headers=headers)
        named = await show(gateway, identity)
    assert (named["title"], named["title_from"]) == ("Parser of dates", "client")


@pytest.mark.parametrize("deletes", ["conversation", "tenant"])
async def test_a_session_is_deleted_with_its_conversation_and_its_tenant(
    tmp_path: Path, deletes: str
) -> None:
    word = "CANARY-bird"
    canary = [ask(f"{word} first"), *edit(1, f"/{word}", f"{word}\n", "b\n")]
    async with ToyUpstream(window=64_000) as toy:
        more = ADMIN + _TENANTS
        async with running_gateway(make_settings(toy, store=f"disk:{tmp_path}", more=more)) as gateway:
            gone = await play(gateway, canary, key="sk-red")
            kept = await play(gateway, SESSION, key="sk-blue")
            foundation, tag = gateway.parts.foundation, make_tag(make_tenant_id("red"))
            session = await foundation.sessions.load(tag, gone)
            assert session is not None
            names = (await foundation.sessions.diffs.load(tag, gone, session.edits)).changes
            assert names
            if deletes == "tenant":
                await foundation.purge.run(tag)
            else:
                await foundation.delete_conversation(tag, gone)
            assert await foundation.sessions.load(tag, gone) is None
            assert (await foundation.sessions.diffs.load(tag, gone, session.edits)).changes == []
            assert (await show(gateway, kept))["title"] == TASK
            assert (await get(gateway, f"/conversations/{gone}/summary"))[0] == 404
        left = await asyncio.to_thread(_read_all, tmp_path)
    assert [data for data in left if word.encode() in data] == []


def _read_all(folder: Path) -> Sequence[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


async def test_hostile_histories_cost_a_bounded_record_and_no_request() -> None:
    """Each of many files, endless lines, and calls whose arguments are no JSON."""
    broken: JSON = {"id": "x", "type": "function", "function": {"name": "edit", "arguments": '{"filePath": '}}
    messages = [ask("Please do " + "x" * 100_000)]
    for number in range(60):
        messages += edit(number, "/" + "p" * 900 + str(number), "a" * 5_000 + "\n", "b" * 5_000 + "\n")
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [broken]},
        {"role": "tool", "tool_call_id": "x", "content": "ok"},
        ask("and now"),
    ]
    async with (
        ToyUpstream(window=9_000_000) as toy,
        running_gateway(make_settings(toy, more=ADMIN)) as gateway,
    ):
        identity = await play(gateway, messages, first=len(messages) - 1)
        page = await show(gateway, identity)
        records = await gateway.parts.foundation.stores.main.scan("a-session:")
    assert max(len(data) for _, data in records) < 200_000
    assert len(page["files"]) > 20 and page["left_files"] > 20
    assert len(page["title"]) <= 100
