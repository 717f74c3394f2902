"""What sessions worked on and what the list says of them: restarts, replicas, tenants, deletion, titles."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.toy.admin_calls import ask as ask_admin
from tests.toy.admin_calls import get, get_json
from tests.toy.agent import make_session
from tests.toy.house import ADMIN, make_settings
from tests.toy.product import Product, serve
from tests.toy.redis_server import RedisServer
from tests.toy.reply import Reply
from tests.toy.running import Pace, run_session
from tests.toy.tool_calls import ask, call, edit
from tests.toy.upstream import ToyUpstream

JSON = dict[str, Any]
_TENANTS: Final = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
TASK: Final = "Fix the parser of dates"
_TOOLS: Final = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]


SESSION: Final[Sequence[JSON]] = (
    ask(TASK),
    *edit(1, "/a.py", "one\n", "two\nthree\n"),
    *call(2, "bash", {"command": "make test"}, "ok"),
    *edit(3, "/b.py", "x\n", "y\n"),
    *edit(4, "/a.py", "two\n", "2\n"),
)


async def play(
    product: Product,
    messages: Sequence[JSON],
    *,
    key: str = "sk-toy",
    headers: dict[str, str] | None = None,
    first: int = 0,
) -> str:
    """Sends a request at the end of each user message and result, from the position `first` on. Returns the
    id of the conversation, once everything about it is written.
    """
    sent = {"Authorization": f"Bearer {key}", **(headers or {})}
    identity = ""
    async with aiohttp.ClientSession(headers=sent) as client:
        for end, message in enumerate(messages, 1):
            if end <= first or message["role"] == "assistant":
                continue
            body = {"model": "toy-model", "messages": list(messages[:end]), "tools": _TOOLS}
            async with client.post(f"{product.base_url}/chat/completions", json=body) as response:
                assert response.status == 200, await response.read()
                await response.read()
                identity = response.headers["x-gateway-conversation"]
    await product.at_rest()
    return identity


async def show(product: Product, identity: str) -> Any:
    """Without what is of this moment."""
    page = await get_json(product, f"/conversations/{identity}/summary")
    diff = await get_json(product, f"/conversations/{identity}/diff")
    return {**page, "updated": None, "diff": diff["files"]}


@pytest.mark.system(20)
async def test_a_session_outlives_a_restart_and_goes_on(tmp_path: Path) -> None:
    async with ToyUpstream(window=64_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}", more=ADMIN)
        async with serve(settings) as product:
            identity = await play(product, SESSION[:5])
            first = await show(product, identity)
        async with serve(settings) as product:
            await product.at_rest()
            assert await show(product, identity) == first
            assert (await get_json(product, "/conversations"))["conversations"][0]["title"] == TASK
            assert await play(product, SESSION, first=5) == identity
            resumed = await show(product, identity)
    async with ToyUpstream(window=64_000) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        whole = await show(product, await play(product, SESSION))
    assert resumed == whole
    assert {file["path"] for file in whole["files"]} == {"/a.py", "/b.py"}


@pytest.mark.system(20)
async def test_each_of_several_replicas_shows_the_whole_session(empty_redis: RedisServer) -> None:
    async with ToyUpstream(window=64_000) as toy:
        settings = make_settings(toy, store=empty_redis.patient_url, more=ADMIN)
        async with serve(settings) as one, serve(settings) as other:
            for end in (1, 3, 5, 7, 9):
                identity = await play((one, other)[end % 4 // 2], SESSION[:end], first=end - 1)
            for product in (one, other):
                page = await get_json(product, f"/conversations/{identity}/summary")
                files = [(each["path"], each["additions"], each["deletions"]) for each in page["files"]]
                assert files == [("/a.py", 3, 2), ("/b.py", 1, 1)]


@pytest.mark.system(20)
async def test_nothing_of_a_session_reaches_another_tenant() -> None:
    """Both send the same history, with the same label, so all that differs is whose it is."""
    label = {"x-gateway-session": "shared"}
    canary = [ask(TASK), *edit(1, "/CANARY", "a\n", "b\n"), *call(2, "bash", {"command": "CANARY"}, "ok")]
    async with (
        ToyUpstream(window=64_000) as toy,
        serve(make_settings(toy, more=ADMIN + _TENANTS)) as product,
    ):
        red = await play(product, canary, key="sk-red", headers=label)
        await name_session(product, toy, "CANARY", key="sk-red", headers=label)
        blue = await play(product, SESSION, key="sk-blue", headers=label)
        shown, hers = await show(product, blue), await show(product, red)
    assert red != blue
    assert "CANARY" not in json.dumps(shown) and shown["title"] == TASK
    assert hers["title"] == "CANARY" and hers["files"][0]["path"] == "/CANARY"


async def name_session(
    product: Product, toy: ToyUpstream, title: str, *, key: str = "sk-toy", headers: dict[str, str]
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
        client.post(f"{product.base_url}/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        await response.read()
    toy.reply = before
    await product.at_rest()


@pytest.mark.system(20)
@pytest.mark.parametrize("headers", [{}, {"x-session-id": "ses_1"}])
async def test_the_clients_own_title_call_names_the_session(headers: dict[str, str]) -> None:
    async with ToyUpstream(window=64_000) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        identity = await play(product, SESSION[:3], headers=headers)
        assert (await show(product, identity))["title_from"] == "message"
        await name_session(product, toy, "Parser of dates", headers=headers)
        named = await show(product, identity)
    assert (named["title"], named["title_from"]) == ("Parser of dates", "client")


async def test_a_session_is_deleted_with_its_conversation(tmp_path: Path) -> None:
    word = "CANARY-bird"
    canary = [ask(f"{word} first"), *edit(1, f"/{word}", f"{word}\n", "b\n")]
    async with ToyUpstream(window=64_000) as toy:
        more = ADMIN + _TENANTS
        async with serve(make_settings(toy, store=f"disk:{tmp_path}", more=more)) as product:
            gone = await play(product, canary, key="sk-red")
            kept = await play(product, SESSION, key="sk-blue")
            assert (await show(product, gone))["files"][0]["path"] == f"/{word}"
            assert (await ask_admin(product, "DELETE", f"/conversations/{gone}"))[0] == 200
            assert (await show(product, kept))["title"] == TASK
            for page in ("summary", "diff"):
                assert (await get(product, f"/conversations/{gone}/{page}"))[0] == 404
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
        serve(make_settings(toy, more=ADMIN)) as product,
    ):
        identity = await play(product, messages, first=len(messages) - 1)
        page = await show(product, identity)
    assert len(json.dumps({**page, "diff": None})) < 200_000
    assert len(page["files"]) > 20 and page["left_files"] > 20
    assert len(page["title"]) <= 100


# What the list says of sessions and of sizes is what a user would say.


async def send(product: Product, label: str, messages: list[JSON]) -> str:
    """The id of the conversation. label: the client's name for its session; empty: none."""
    headers = {"Authorization": "Bearer sk-toy"} | ({"x-gateway-session": label} if label else {})
    body = {"model": "toy-model", "messages": messages}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{product.base_url}/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        return response.headers["x-gateway-conversation"]


def make_history(turns: int, word: str) -> list[JSON]:
    """Two with one word are the same, as of a model that is asked without chance."""
    messages = [ask("Review the storage layer, please.")]
    for at in range(turns):
        messages += [{"role": "assistant", "content": f"Step {at}: {word}."}, ask(f"Go on with {at}.")]
    return messages


async def run(product: Product, label: str, word: str, turns: int = 4) -> set[str]:
    return {await send(product, label, make_history(at, word)) for at in range(turns)}


async def list_rows(product: Product) -> list[JSON]:
    return list((await get_json(product, "/conversations"))["conversations"])


async def test_two_runs_with_one_prompt_are_two_rows_with_their_own_names() -> None:
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        same = await run(product, "first", "done"), await run(product, "second", "done")
        other = await run(product, "third", "finished")
        rows = await list_rows(product)
        totals = await get_json(product, "/totals")
    assert [len(found) for found in (*same, other)] == [1, 1, 1]
    names = {(row["session"], row["requests"], row["parent"]) for row in rows}
    assert names == {(name, 4, None) for name in ("first", "second", "third")}
    assert totals["tenants"][0]["conversations"] == 3


async def test_two_runs_at_once_do_not_take_each_others_row() -> None:
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        ids: dict[str, set[str]] = {"first": set(), "second": set()}
        for at in range(5):
            for label, found in ids.items():
                found.add(await send(product, label, make_history(at, "done")))
    assert [len(found) for found in ids.values()] == [1, 1] and ids["first"] != ids["second"]


async def test_branches_of_a_session_count_as_one_conversation() -> None:
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        for word in ("one", "two", "three"):
            await run(product, "", word)
        rows = await list_rows(product)
        totals = await get_json(product, "/totals")
    assert len(rows) == 3
    assert totals["tenants"][0]["conversations"] == 1


async def test_a_request_that_was_answered_is_shown_as_the_upstream_counted_it() -> None:
    """Whatever our own count says."""
    session = make_session(30, 3)
    async with ToyUpstream(window=16_000, bias=0.7) as toy, serve(make_settings(toy, more=ADMIN)) as product:
        done = await run_session(session, product.base_url, toy, pace=Pace(last=16))
        (row,) = await list_rows(product)
        listed = await get_json(product, f"/conversations/{done.conversation}/requests")
    assert row["sent_tokens"] == row["prompt_tokens"] <= row["window"]
    assert row["received_tokens"] >= row["sent_tokens"]
    counted = [seen.prompt_tokens for seen in done.outgoing]
    assert [point["prompt_tokens"] for point in listed["requests"]] == counted
    assert [point["sent"] for point in listed["requests"]] == counted
