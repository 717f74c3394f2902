"""Texts of conversations: who is shown them, and what sessions, summaries and searches say."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.toy.agent import Fact, Session, Shape, make_session
from tests.toy.documented_api import DocumentedAPI, open_documented_api
from tests.toy.house import ADMIN, ADMIN_TOKEN, House, make_settings
from tests.toy.product import Product, command, serve
from tests.toy.running import Run
from tests.toy.tool_calls import ask, call, edit
from tests.toy.upstream import ToyUpstream
from tests.toy.work import SESSION, TASK, play_work

pytestmark = pytest.mark.asyncio(loop_scope="module")

_OPEN = "admin: {port: 0}\n"
_HIDES = "policies: {default: {show_texts: false}}\n"
_TENANTS = (
    "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue], policy: open}\n"
    "policies: {open: {show_texts: true}}\n"
)
_WORD = "canary-of-%s-7461"
_SESSION = make_session(45, 3)
_SHAPE = Shape(max_tokens=1_000)


async def play(house: House, session: Session = _SESSION, first: int = 0, last: int | None = None) -> Run:
    run = await house.play(session, _SHAPE, first, last)
    assert run.failed == []
    await house.at_rest()
    return run


async def read(house: House, path: str, token: str | None = ADMIN_TOKEN) -> Any:
    status, value = await house.admin(path, token=token)
    assert status == 200, value
    return value


async def fetch(house: House, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Status and text, whatever its type."""
    url = f"{house.product.admin_url}/api{path}"
    async with aiohttp.ClientSession(headers=headers) as client, client.get(url) as answer:
        return answer.status, await answer.text()


def make_history(tenant: str, turns: int) -> list[dict[str, str]]:
    """Each message holds the tenant's word, also in what is quoted of it."""
    word = _WORD % tenant
    messages = [{"role": "user", "content": f"Build {word}.py for {word}."}]
    for at in range(turns):
        messages.append({"role": "assistant", "content": f"Step {at} of {word} is done."})
        messages.append({"role": "user", "content": f"{word} " * 120})
    return messages


async def talk(toy: ToyUpstream, product: Product, tenant: str) -> str:
    """The conversation of two requests, which are both sent with a summary."""
    house, identity = House(toy, product, f"sk-{tenant}"), ""
    for turns in (10, 11):
        body = {"model": "toy-model", "messages": make_history(tenant, turns)}
        answer = await house.post("/chat/completions", body)
        assert answer.header("x-gateway-plan") == "pivot"
        identity = answer.header("x-gateway-conversation") or ""
    await house.at_rest()
    return identity


@asynccontextmanager
async def open_office(more: str) -> AsyncIterator[tuple[DocumentedAPI, dict[str, str]]]:
    """Two tenants and their compacted conversations; without tenants in `more`, two callers."""
    async with ToyUpstream(window=8_000) as toy, serve(make_settings(toy, more=more)) as product:
        found = {tenant: await talk(toy, product, tenant) for tenant in ("red", "blue")}
        token = ADMIN_TOKEN if more.startswith(ADMIN) else ""
        yield await open_documented_api(product.admin_url, token), found


async def find_digest(api: DocumentedAPI, identity: str) -> str:
    taken = (await api.call("listOriginals", names={"id": identity})).json()["taken"]
    return str(taken[0]["messages"][0]["digest"])


async def show_original(api: DocumentedAPI, identity: str) -> Any:
    names = {"id": identity, "digest": await find_digest(api, identity)}
    return await api.call("showOriginal", names=names)


async def read_everything(api: DocumentedAPI, identity: str) -> bytes:
    """What every operation that only reads says of a conversation."""
    listed = (await api.call("listSummaries", names={"id": identity})).json()
    names = {"id": identity, "digest": await find_digest(api, identity), "key": listed["summaries"][0]["key"]}
    answers = [
        await api.call(operation["operationId"], names=names)
        for method, _, operation in api.list_operations()
        if method == "GET"
    ]
    return b"".join(answer.body for answer in answers)


@pytest.mark.parametrize("more", [ADMIN + _TENANTS, _OPEN + _TENANTS])
async def test_no_answer_has_a_text_of_another_tenant_or_one_that_is_not_shown(more: str) -> None:
    async with open_office(more) as (api, found):
        read = {tenant: await read_everything(api, identity) for tenant, identity in found.items()}
        digest = await find_digest(api, found["red"])
        other = await api.call("showOriginal", names={"id": found["blue"], "digest": digest})
        shown = {tenant: await show_original(api, identity) for tenant, identity in found.items()}
        pages = {
            tenant: (await api.call("showConversation", names={"id": identity})).json()["texts"]
            for tenant, identity in found.items()
        }
    red, blue = ((_WORD % tenant).encode() for tenant in found)
    is_open = more.startswith(ADMIN)
    assert red not in read["blue"] and blue not in read["red"] and blue in read["blue"]
    assert (red in read["red"]) == is_open
    assert other.status == 404 and red not in other.body
    assert (shown["red"].status, shown["blue"].status) == (200 if is_open else 403, 200)
    assert blue in shown["blue"].body and shown["blue"].headers["Cache-Control"] == "no-store"
    assert pages["blue"] == {"allowed": True, "reason": None}
    if not is_open:
        detail = shown["red"].json()["detail"]
        assert "admin.token" in detail and "show_texts" in detail
        assert pages["red"] == {"allowed": False, "reason": detail}


@pytest.mark.parametrize(("more", "status"), [(_OPEN, 200), (_OPEN + _HIDES, 403)])
async def test_on_loopback_without_tenants_texts_are_shown_unless_a_policy_says_no(
    more: str, status: int
) -> None:
    async with ToyUpstream(window=8_000) as toy, serve(make_settings(toy, more=more)) as product:
        identity = await talk(toy, product, "red")
        house, place = House(toy, product, "sk-red"), f"/v1/conversations/{identity}"
        api = await open_documented_api(product.admin_url)
        assert (await show_original(api, identity)).status == status
        for path in ("summary", "summary?format=markdown", "diff", "export", "messages", "search?q=step"):
            found, text = await fetch(house, f"{place}/{path}")
            assert found == status and (status == 200 or _WORD % "red" not in text), path
        summaries = (await read(house, f"{place}/summaries", token=None))["summaries"]
        assert all(
            (each["text"] is None) == (each["framing"] is None) == (status == 403) for each in summaries
        )
        versions = [version["text"] for each in summaries for version in each["versions"]]
        assert all((text is None) == (status == 403) for text in versions)
        change = f"{place}/summaries/{summaries[0]['key']}"
        edited, _ = await house.admin(change, "PUT", b'{"text": "Mine."}', token=None)
        restored, _ = await house.admin(f"{change}/restore", "POST", b'{"version": 1}', token=None)
        assert (edited, restored) == (status, status)
        (row,) = (await read(house, "/v1/conversations", token=None))["conversations"]
        assert (row["title"] is None) == (status == 403)


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
    async with ToyUpstream(window=8_000) as toy, serve(make_settings(toy, more=_OPEN)) as product:
        identity = await talk(toy, product, "red")
        for path in ("", f"/{identity}", f"/{identity}/export", f"/{identity}/summaries"):
            url = f"{product.admin_url}/api/v1/conversations{path}"
            async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as answer:
                assert answer.status == 403 and _WORD % "red" not in await answer.text()


async def test_each_view_is_one_line_of_the_log_without_the_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with open_office(_OPEN + _TENANTS) as (api, found):
        await show_original(api, found["red"])
        await api.call("showOriginal", names={"id": found["blue"], "digest": "0" * 64})
        assert "texts shown" not in caplog.text
        names = {"id": found["blue"], "digest": await find_digest(api, found["blue"])}
        # Who asked is who has the connection, whatever the request says.
        await api.call("showOriginal", headers={"X-Gateway-Peer": "10.9.9.9"}, names=names)
        for operation in ("exportConversation", "listMessages"):
            await api.call(operation, names=names)
        await api.call("searchOriginals", "?q=canary", names=names)
    lines = [each.getMessage() for each in caplog.records if "texts shown" in each.getMessage()]
    # An export has the summaries, too.
    views = [line.partition(" what=")[2].partition(" to=")[0] for line in lines]
    assert views == ["original", "summaries", "export", "messages", "search"]
    assert all(f"conversation={found['blue']} " in line and line.endswith(" to=127.0.0.1") for line in lines)
    assert "canary" not in caplog.text


# What a session worked on.


@pytest.mark.system(20)
async def test_a_session_is_shown_as_json_and_as_markdown_with_its_diffs(house: House) -> None:
    identity = await play_work(house)
    path = f"/conversations/{identity}"
    page, diff = await read(house, f"{path}/summary"), await read(house, f"{path}/diff")
    assert (page["title"], page["title_from"]) == (TASK, "message")
    files = {file["path"]: (file["additions"], file["deletions"]) for file in page["files"]}
    assert files == {"/a.py": (3, 2), "/b.py": (1, 1)}
    assert (page["additions"], page["deletions"]) == (4, 3)
    assert [each["command"] for each in page["commands"]] == ["make test"]
    assert [file["file"] for file in diff["files"]] == ["/a.py", "/b.py"]
    first = diff["files"][0]
    assert first["messages"] == [1, 7] and (first["additions"], first["deletions"]) == (3, 2)
    assert first["diff"].startswith("--- a/a.py\n+++ b/a.py\n@@") and "-one\n+two\n+three\n" in first["diff"]
    # What a file held is not guessed.
    assert (first["before"], first["after"]) == (None, None)
    # A user message stands for all that was done for it.
    for message, names in ((0, ["/a.py", "/b.py"]), (1, ["/a.py"]), (3, []), (7, ["/a.py"]), (99, [])):
        part = await read(house, f"{path}/diff?message={message}")
        assert [file["file"] for file in part["files"]] == names
    assert (await read(house, f"/conversations?q={identity}"))["conversations"][0]["title"] == TASK
    markdown = await read(house, f"{path}/summary?format=markdown")
    assert markdown.startswith(f"# {TASK}\n\nConversation `{identity}`, noted 20")
    for line in ("## Files: +4 -3", "- `/a.py`: +3 -2", "- `/b.py`: +1 -1", "- `make test`", f"- 0: {TASK}"):
        assert f"\n{line}" in markdown


@pytest.mark.parametrize(
    "text",
    [
        "a`b",
        "```\n# x",
        "<b>x</b>",
        "[x](http://y)",
        "*a*_b_",
        "\x1b[31mred",
        "x\n## Files: +9 -9\ny",
        "|a|\u2028b",
    ],
)
async def test_no_text_adds_a_heading_or_ends_its_quotation(house: House, text: str) -> None:
    todos = {"todos": [{"content": text, "status": "in_progress", "id": "1"}]}
    messages = [ask(text), *call(1, "todowrite", todos), *call(2, "bash", {"command": text}, "ok")]
    identity = await play_work(house, [*messages, *edit(3, "/a`b.py", "one\n", "two\n")])
    markdown = await read(house, f"/conversations/{identity}/summary?format=markdown")
    headings = [line for line in markdown.split("\n") if line.startswith("#")]
    assert [line for line in headings[1:] if not line.startswith("## Commands")] == [
        *("## Files: +1 -1", "## Open to-dos", "## Messages")
    ]
    assert "\x1b" not in markdown and "\u2028" not in markdown and "- ``/a`b.py``: +1 -1" in markdown
    # Outside of a quotation nothing is left that Markdown or HTML would obey.
    bare = re.sub(r"(`+).*?\1", "", markdown)
    assert not re.search(r"(?<!\\)[<*_\[]", re.sub(r"^- \[ \] ", "", bare, flags=re.MULTILINE))


async def test_a_session_of_which_nothing_is_kept_is_empty() -> None:
    more = ADMIN + "policies: {default: {session_summary: false}}\n"
    async with ToyUpstream() as toy, serve(make_settings(toy, more=more)) as product:
        house = House(toy, product, "sk-a")
        identity = await play_work(house, SESSION)
        page = await read(house, f"/conversations/{identity}/summary")
        assert (page["updated"], page["title"], page["files"]) == (None, None, [])
        assert (await read(house, f"/conversations/{identity}/diff"))["files"] == []
        markdown = await read(house, f"/conversations/{identity}/summary?format=markdown")
        assert markdown == f"# Session {identity}\n\nConversation `{identity}`: nothing is kept.\n"


# Summaries, what was taken out, and the end.


async def test_summaries_say_what_they_cover_and_one_is_in_use(house: House) -> None:
    run = await play(house)
    path = f"/v1/conversations/{run.conversation}/summaries"
    newest, *older = (await read(house, path))["summaries"]
    assert older and newest["covers"] > older[0]["covers"]
    assert [each["in_use"] for each in (newest, *older)].count(True) == 1
    assert newest["kind"] == "summary" and newest["trigger"] == "auto" and newest["calls"] >= 1
    assert "conversation id" in newest["framing"] and newest["framing"] not in newest["text"]
    assert newest["tokens"] > 0 and newest["saved_tokens"] > 0
    (version,) = newest["versions"]
    assert (version["version"], version["edited"], version["text"]) == (1, False, newest["text"])
    used = next(each for each in (newest, *older) if each["in_use"])
    assert used["text"].splitlines()[0] in json.dumps(run.outgoing[-1].request)[:200_000].replace("\\n", "\n")
    # One that is not in use any more, one that never was, and a version that there is not.
    statuses = [
        (await house.admin(f"{path}/{key}", "PUT", b'{"text": "Mine."}'))[0]
        for key in (older[-1]["key"], "ab" * 32, "not-a-key")
    ]
    statuses += [(await house.admin(f"{path}/{newest['key']}/restore", "POST", b'{"version": 9}'))[0]]
    assert statuses == [409, 409, 404, 404]


def find_folded(session: Session) -> Fact:
    """A fact of an early turn, which the first compaction takes out."""
    return next(fact for fact in session.facts if fact.turn > 0)


_ODD = (
    *('"', '" OR *', "NEAR(a b)", "*", "a:b", "-", "%00", "\ufffd", "' OR 1=1 --", "漢字"),
    *("%F0%9F%92%A9" * 300, "(" * 999),
)


async def test_what_is_not_sent_any_more_is_found_by_what_it_says(house: House) -> None:
    fact = find_folded(_SESSION)
    run = await play(house)
    path = f"/v1/conversations/{run.conversation}/search?q="
    page = await read(house, path + fact.token)
    first = page["found"][0]
    assert (page["id"], first["conversation"]) == (run.conversation, run.conversation)
    assert fact.token in first["text"] and first["end"] - first["start"] == len(first["text"])
    assert first["position"] > 0 and first["when"].endswith("+00:00")
    assert len((await read(house, f"{path}file&limit=2"))["found"]) == 2
    assert (await read(house, f"{path}zzyzx-nowhere"))["found"] == []
    for query in _ODD:
        assert (await house.admin(path + query))[0] == 200, query
    _, metrics = await house.admin("/metrics")
    assert 'gateway_recall_searches_total{result="nothing",way="admin"}' in metrics
    # A branch finds what was taken out before it branched off, and another tenant finds nothing.
    branch = replace(_SESSION, turns=(*_SESSION.turns[:35], *make_session(45, 4).turns[35:]))
    branched = await play(house, branch, 35, 38)
    assert branched.conversation != run.conversation
    found = (await read(house, f"/v1/conversations/{branched.conversation}/search?q={fact.token}"))["found"]
    assert found[0]["conversation"] == run.conversation and fact.token in found[0]["text"]
    other = await play(House(house.toy, house.product, f"{house.key}-other"), make_session(30, 9))
    found = (await read(house, f"/v1/conversations/{other.conversation}/search?q={fact.token}"))["found"]
    assert {each["conversation"] for each in found} <= {other.conversation}
    assert not any(fact.token in each["text"] for each in found)


async def test_a_replay_of_an_export_keeps_window_price_and_totals(tmp_path: Path) -> None:
    """Without the settings of the gateway that it comes from. A body on several lines is one line."""
    price, session = "{input: 3, cached: 1, output: 15}", make_session(30, 3)
    policies = "policies: {default: {economy: 0}}\n"
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, price=price, more=ADMIN + policies)) as product,
    ):
        house = House(toy, product, "sk-a")
        run = await house.play(session, Shape(indent=1))
        await house.at_rest()
        row = await read(house, f"/v1/conversations/{run.conversation}")
        bearer = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        _, data = await fetch(house, f"/v1/conversations/{run.conversation}/export", bearer)
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["type"] for line in lines].count("request") == len(session)
    assert {name: lines[0][name] for name in ("type", "version", "id", "format")} == {
        "type": "gateway.export",
        "version": 1,
        "id": run.conversation,
        "format": "chat",
    }
    (body,) = [line["body"] for line in lines if line["type"] == "body"]
    assert body == json.loads(session.request(len(session) - 1)) and "summary" in [
        line["type"] for line in lines
    ]
    path = tmp_path / "export.ndjson"
    await asyncio.to_thread(path.write_text, data, "utf-8")
    replayed = await asyncio.to_thread(command, "replay", str(path), "--json")
    value = json.loads(replayed.out)
    (result,), (played,) = value["policies"], value["sessions"]
    sums, cost = result["sums"], result["cost"]
    assert (played["kind"], played["skipped"]) == ("gateway export", 0)
    assert (sums["window"], sums["requests"], cost["unpriced_requests"]) == (16_000, row["requests"], 0)
    assert sums["compactions"] == row["compactions"] > 0 and cost["with_usd"] > 0
    assert sums["received"] == pytest.approx(row["total_received_tokens"], rel=0.05)
    assert sums["sent"] == pytest.approx(row["total_sent_tokens"], rel=0.2)


async def test_a_deleted_conversation_is_gone_and_no_other(house: House) -> None:
    run, other = await play(house), await play(house, make_session(30, 8))
    path = f"/v1/conversations/{run.conversation}"
    status, page = await house.admin(path, "DELETE")
    assert status == 200 and page["id"] == run.conversation
    assert page["deleted"]["state"] > 0
    assert [(await house.admin(path, method))[0] for method in ("GET", "DELETE")] == [404, 404]
    assert (await read(house, f"/v1/conversations/{other.conversation}/originals"))["taken"]
