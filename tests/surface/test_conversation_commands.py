"""`refold conversations`, `export` and `top`: against a gateway, and against answers that a test makes."""

import asyncio
import fcntl
import json
import os
import pty
import select
import stat
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.toy.agent import Session, Shape, make_session
from tests.toy.house import ADMIN_TOKEN, House, make_settings
from tests.toy.product import Result, command, serve
from tests.toy.tool_calls import ask
from tests.toy.upstream import ToyUpstream
from tests.toy.work import (
    SESSION,
    TASK,
    make_economics,
    make_page,
    make_request,
    make_row,
    make_summary,
    play_work,
)


@dataclass
class ToyAdminPort:
    """answers: status and body, by method and path below /api/v1. asked: method, path with query, token."""

    answers: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    port: int = 0

    def answer(self, method: str, path: str, value: object, status: int = 200) -> None:
        self.answers[method, path] = (status, json.dumps(value).encode())

    def write_settings(self, folder: Path, token: str = "") -> str:
        """The path of a settings file that names this port."""
        path = folder / "gateway.yaml"
        path.write_text(f"admin: {{port: {self.port}{f', token: {token}' if token else ''}}}\n")
        return str(path)

    async def serve(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path_qs, request.headers.get("Authorization", "")))
        self.bodies.append(await request.read())
        path = request.path.removeprefix("/api/v1")
        status, body = self.answers.get((request.method, path), (404, b'{"detail": "no such path"}'))
        headers: Mapping[str, str] = {"Content-Type": "application/json"}
        return web.Response(status=status, body=body, headers=headers)


@asynccontextmanager
async def serving_admin_port() -> AsyncIterator[ToyAdminPort]:
    toy = ToyAdminPort()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", toy.serve)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        toy.port = runner.addresses[0][1]
        yield toy
    finally:
        await runner.cleanup()


pytestmark = pytest.mark.asyncio(loop_scope="module")

BIAS = 1.1
_ENV = {"GATEWAY_ADMIN_TOKEN": ADMIN_TOKEN}


async def run(house: House, *words: str, token: bool = True) -> Result:
    port = ("--admin-port", str(house.product.admin_port))
    return await asyncio.to_thread(command, *words, *port, env=_ENV if token else {})


async def read(house: House, *words: str) -> Any:
    result = await run(house, *words, "--json")
    assert result.status == 0, result.err
    return json.loads(result.out)


def make(seed: int) -> Session:
    return make_session(30, seed, "one_user", 700)


async def play(house: House, seed: int) -> str:
    """The id of a conversation that was compacted."""
    played = await house.play(make(seed), Shape(max_tokens=1_000))
    assert played.failed == [] and played.summaries
    await house.at_rest()
    return played.conversation


async def test_conversations_are_listed_the_newest_first_with_filters(house: House) -> None:
    first, second = await play(house, 1), await play(house, 2)
    result = await run(house, "conversations", "list")
    assert result.status == 0 and first[:8] in result.out and second[:8] in result.out
    assert "/16k" in result.out and "\x1b" not in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    listed = await read(house, "conversations", "list", "--limit", "1")
    assert [row["id"] for row in listed["conversations"]] == [second]
    listed = await read(house, "conversations", "list", "--model", "toy-*", "--search", first)
    assert [row["id"] for row in listed["conversations"]] == [first]
    nothing = await run(house, "conversations", "list", "--model", "other")
    assert nothing.status == 0 and "no conversations" in nothing.out


async def test_a_conversation_is_shown_compacted_and_deleted(house: House) -> None:
    identity = await play(house, 3)
    shown = await run(house, "conversations", "show", identity[:10])
    assert "Newest requests: 15 of 30" in shown.out and "pivot ← compaction" in shown.out
    value = await read(house, "conversations", "show", identity)
    assert value["conversation"]["id"] == identity and len(value["requests"]) == 30
    assert [each["text"] for each in value["summaries"]] == [None] * len(value["summaries"]) != []
    texts = await read(house, "conversations", "show", identity, "--texts")
    assert all(each["text"] for each in texts["summaries"])
    before = len(house.toy.summaries)
    words = ("compact", identity, "--instructions", "Keep all names.")
    begun = await run(house, "conversations", *words)
    assert begun.status == 0 and "compaction begins now" in begun.out
    await house.at_rest()
    assert len(house.toy.summaries) > before
    assert "Keep all names." in house.toy.summaries[-1].body.decode()
    gone = await read(house, "conversations", "delete", identity, "--yes")
    assert gone["deleted"]["state"] > 0
    again = await run(house, "conversations", "show", identity)
    assert again.status == 1 and "no conversation has an id" in again.err


async def test_without_the_token_it_is_asked_for(house: House) -> None:
    result = await run(house, "conversations", "list", token=False)
    assert (result.status, result.out) == (1, "") and "GATEWAY_ADMIN_TOKEN" in result.err


async def test_a_search_shows_what_is_not_sent_any_more(house: House) -> None:
    token = make(4).facts[1].token
    identity = await play(house, 4)
    shown = await run(house, "conversations", "search", identity[:10], token)
    assert shown.status == 0 and token in shown.out and "message " in shown.out
    (found,) = (await read(house, "conversations", "search", identity, token, "--limit", "1"))["found"]
    assert token in found["text"]
    nothing = await run(house, "conversations", "search", identity, "zzyzx-nowhere")
    assert nothing.status == 1
    assert nothing.out == "nothing found in the messages that were summarized or pruned\n"


async def test_what_a_session_worked_on_is_markdown_or_json(house: House) -> None:
    identity = await play_work(house, [*SESSION, ask("Now this: \x1b[31m red")])
    shown = (await run(house, "conversations", "show", identity, "--summary")).out
    assert shown.startswith(f"# {TASK}\n") and "- `/a.py`: +3 -2\n" in shown and "\x1b" not in shown
    value = await read(house, "conversations", "show", identity, "--summary")
    assert value["files"][0]["path"] == "/a.py"


async def test_an_export_is_a_file_for_its_owner_and_never_replaces_one(house: House, tmp_path: Path) -> None:
    identity = await play(house, 5)
    path = tmp_path / "session.ndjson"
    written = await run(house, "export", identity[:9], "--output", str(path))
    assert (written.status, written.out) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    printed = await run(house, "export", identity)
    assert printed.out == await asyncio.to_thread(path.read_text, "utf-8")
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert lines[0]["type"] == "gateway.export" and lines[0]["id"] == identity
    again = await run(house, "export", identity, "--output", str(path))
    assert again.status == 1 and "File exists" in again.err
    unknown = await run(house, "export", "ffffffff")
    assert unknown.status == 1 and unknown.err.startswith("gateway: ")


async def test_top_sums_what_all_of_them_did(house: House) -> None:
    await play(house, 6)
    rows = (await house.admin("/v1/conversations?limit=500"))[1]["conversations"]
    totals = (await read(house, "top"))["totals"]
    for name in ("requests", "compactions", "saved_tokens"):
        assert totals[name] == sum(row[name] for row in rows)
    once = await run(house, "top", "--once")
    assert f"conversations {len(rows)} · requests {sum(row['requests'] for row in rows)}" in once.out
    assert max(map(len, once.out.splitlines())) <= 80


async def test_texts_that_are_not_shown_are_told_as_such() -> None:
    more = "admin: {port: 0}\npolicies: {default: {show_texts: false}}\n"
    async with ToyUpstream() as toy, serve(make_settings(toy, more=more)) as product:
        house = House(toy, product, "sk-a")
        identity = await play_work(house)
        result = await run(house, "conversations", "show", identity, "--summary", token=False)
    assert result.status == 1 and TASK not in result.out + result.err
    assert "texts of conversations are not shown" in result.err


# Against answers that a test makes.


class Desk:
    """An admin port, and the settings of the commands that ask it."""

    def __init__(self, toy: ToyAdminPort, folder: Path) -> None:
        self.toy, self.folder = toy, folder

    def know(self, *rows: object, cursor: str | None = None) -> None:
        self.toy.answer("GET", "/conversations", {"conversations": list(rows), "next": cursor})

    async def run(self, *words: str, token: str = "", **env: str) -> Result:
        config = self.toy.write_settings(self.folder, token)
        return await asyncio.to_thread(command, *words, "--config", config, env=env)

    async def show(self, page: object, requests: object = (), summaries: object = (), *words: str) -> str:
        identity = "0123456789abcdef"
        self.know(make_row(identity))
        path = f"/conversations/{identity}"
        self.toy.answer("GET", path, page)
        self.toy.answer("GET", f"{path}/requests", {"id": identity, "requests": requests, "left_off": 0})
        self.toy.answer("GET", f"{path}/summaries", {"id": identity, "summaries": summaries})
        result = await self.run("conversations", "show", identity, *words)
        assert result.status == 0, result.err
        assert max(map(len, result.out.splitlines())) <= 80
        return result.out


@asynccontextmanager
async def opening(folder: Path) -> AsyncIterator[Desk]:
    async with serving_admin_port() as toy:
        yield Desk(toy, folder)


async def test_the_token_of_the_settings_is_sent_and_never_shown(tmp_path: Path) -> None:
    async with opening(tmp_path) as desk:
        desk.know()
        await desk.run("conversations", "list", token="a-token-for-operators")
        await desk.run("conversations", "list")
        assert [token for _, _, token in desk.toy.asked] == ["Bearer a-token-for-operators", ""]
        desk.toy.answer("GET", "/conversations", {"detail": "token required"}, status=401)
        refused = await desk.run("conversations", "list", token="a-token-for-operators")
    assert refused.status == 1 and "GATEWAY_ADMIN_TOKEN" in refused.err
    away = await desk.run("top", "--json", token="a-token-for-operators")
    assert (away.status, away.out) == (1, "")
    assert "no gateway answers at the admin port" in away.err and "--admin-port" in away.err
    assert "a-token" not in refused.err + away.err


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (409, b'{"title": "Conflict", "detail": "in progress\x1b"}', "in progress\ufffd"),
        (409, b'{"title": "Conflict", "detail": "in progress\\u001b"}', "in progress\ufffd"),
        (500, b'"no problem"', "refused (status 500)"),
        (200, b"<html>", "is not the admin port of a gateway"),
        (200, b'{"other": 1}', "is not the admin port of a gateway"),
    ],
)
async def test_what_the_admin_port_refuses_is_said_in_its_own_words(
    tmp_path: Path, status: int, body: bytes, said: str
) -> None:
    async with opening(tmp_path) as desk:
        desk.toy.answers["GET", "/conversations"] = (status, body)
        result = await desk.run("conversations", "list")
    assert (result.status, result.out) == (1, "")
    assert said in result.err or (b"\x1b" in body and "refused (status 409)" in result.err)
    assert "\x1b" not in result.err


async def test_an_id_that_begins_several_is_not_guessed(tmp_path: Path) -> None:
    async with opening(tmp_path) as desk:
        desk.know(make_row("abc1"), make_row("abc2"), make_row("xabc"))
        several = await desk.run("conversations", "compact", "abc")
        nothing = await desk.run("conversations", "compact", "nothing\x1b")
        desk.toy.answer("POST", "/conversations/abc1/compact", {"id": "abc1", "begins": "now"}, status=202)
        whole = await desk.run("conversations", "compact", "abc1", "--json")
    assert "2 conversations have ids that begin with abc: abc1, abc2" in several.err
    assert "no conversation has an id that begins with nothing\ufffd" in nothing.err
    assert (several.status, nothing.status) == (1, 1)
    assert json.loads(whole.out) == {"id": "abc1", "begins": "now"}


async def test_every_page_is_read_up_to_the_limit(tmp_path: Path) -> None:
    async with opening(tmp_path) as desk:
        desk.know(make_row("a1", model="m"), make_row("a2", model="n"), cursor="more")
        words = ("--model", "m*", "--limit", "3", "--tenant", "t", "--json")
        result = await desk.run("conversations", "list", *words)
    assert [row["id"] for row in json.loads(result.out)["conversations"]] == ["a1"] * 3
    assert [path for _, path, _ in desk.toy.asked] == [
        "/api/v1/conversations?tenant=t&limit=500",
        *["/api/v1/conversations?tenant=t&limit=500&cursor=more"] * 2,
    ]


async def test_nothing_is_deleted_without_a_yes(tmp_path: Path) -> None:
    async with opening(tmp_path) as desk:
        desk.know(make_row("abc1"))
        deleted = {"id": "abc1", "deleted": {"state": 3, "originals": 2, "named": 0}}
        desk.toy.answer("DELETE", "/conversations/abc1", deleted)
        unsure = await desk.run("conversations", "delete", "abc")
        assert [method for method, _, _ in desk.toy.asked] == ["GET"]
        sure = await desk.run("conversations", "delete", "abc", "--yes")
    assert unsure.status == 1 and "nothing was deleted" in unsure.err
    assert sure.status == 0 and "abc1: deleted; records: state: 3, originals: 2, named: 0" in sure.out


@pytest.mark.parametrize("columns", [80, 140])
async def test_a_conversation_takes_one_line_whatever_its_names(tmp_path: Path, columns: int) -> None:
    long = make_row(
        tenant="a-tenant-with-a-long-name" * 2,
        model="a/model-with-a-very-long-name-indeed" * 2,
        session="label" * 20,
        requests=1_234_567,
        sent_tokens=123_456,
        window=1_234_567,
        saved_tokens=999_999_999,
        compactions=999,
        spent_usd=12_345.0,
    )
    odd = make_row(tenant="\x1b[2J", model="[red]m", window=None, soft=None)
    async with opening(tmp_path) as desk:
        desk.know(long, make_row(), odd)
        shown = (await desk.run("conversations", "list", COLUMNS=str(columns))).out
    head, first, plain, last = shown.splitlines()
    assert max(map(len, shown.splitlines())) <= columns and "\x1b" not in shown
    assert "123k/1.2M" in first and "999" in first and "████░" in plain
    assert "8k/–" in last and "█" not in last and "[red]m" in last
    assert ("$12345.00" in first) == ("SPENT" in head) == (columns == 140)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        *((0, "0/"), (999, "999/"), (1_000, "1k/"), (12_345, "12.3k/"), (99_940, "99.9k/")),
        *((99_960, "100k/"), (128_000, "128k/"), (999_499, "999k/"), (999_500, "1M/"), (1_250_000, "1.2M/")),
    ],
)
async def test_tokens_take_five_characters(tmp_path: Path, sent: int, shown: str) -> None:
    async with opening(tmp_path) as desk:
        desk.know(make_row(sent_tokens=sent))
        assert f" {shown}" in (await desk.run("conversations", "list")).out


async def test_the_newest_requests_are_a_chart_with_what_changed(tmp_path: Path) -> None:
    requests = [make_request(messages=n) for n in range(100, 140)]
    requests += [make_request(messages=140, change="compaction"), make_request(sent=50_000, messages=141)]
    async with opening(tmp_path) as desk:
        text = await desk.show(make_page(requests=42), requests)
    assert "Newest requests: 15 of 42" in text and "pivot ← compaction" in text
    assert " 139 " in text and " 100 " not in text
    assert "████████████░░░│" in text and "█" * 24 in text and "█" * 25 not in text


async def test_a_summary_says_what_it_cost_and_its_text_only_if_wanted(tmp_path: Path) -> None:
    told = make_summary(text="The task is to [b]write[/b].\nNext: \x1b[2Jtest.")
    riding = make_summary(calls=2, riding_calls=1)
    async with opening(tmp_path) as desk:
        plain = await desk.show(make_page(), [], [told, riding])
        words = await desk.show(make_page(), [], [told, riding], "--texts")
    assert "summary of 7 messages, in use: soft_threshold" in plain and "The task" not in plain
    assert "; 1 call, $0.0100" in " ".join(plain.split())
    assert "; 2 calls, 1 riding, $0.0100" in " ".join(plain.split())
    assert "The task is to [b]write[/b].\nNext: \ufffd[2Jtest." in words
    assert "its text is not shown: set admin.token" in words


@pytest.mark.parametrize(
    ("economics", "changes", "said"),
    [
        ({}, {"cache_breaks": 0}, ["saved –: no price or no usage known", "nothing known; 0 breaks"]),
        (
            {
                "prompt_tokens": 5_000_000,
                "cached_tokens": 4_700_000,
                "breaks": {"compaction": 8, "history": 1},
                "compared_requests": 85,
                "with_usd": 1.66,
                "without_usd": 2.13,
            },
            {"cache_breaks": 9, "died_at": 86},
            [
                "+$0.4700 saved: $2.13 without the gateway, $1.66 with it, for 85 requests; "
                "request 86 would not have fit",
                "94% of 5M prompt tokens; 9 breaks (8 compactions, 1 changed history)",
            ],
        ),
        (
            {"compared_requests": 1, "with_usd": 3.33, "without_usd": 2.13},
            {},
            ["−$1.20 more spent: $2.13 without the gateway, $3.33 with it, for 1 request"],
        ),
        (
            {"unused_summaries": 2},
            {"spent_usd": 0.0123, "summary_usd": 12.345},
            ["summaries not used so far: 2", "spent $0.0123, summaries $12.35", "1 compaction, 0 prunings"],
        ),
    ],
)
async def test_what_it_cost_and_would_have_cost_is_told(
    tmp_path: Path, economics: dict[str, Any], changes: dict[str, Any], said: list[str]
) -> None:
    async with opening(tmp_path) as desk:
        text = await desk.show(make_page(economics=make_economics(**economics), **changes))
    for words in said:
        assert words in " ".join(text.split())


async def test_found_pieces_stand_under_their_places_and_command_no_terminal(tmp_path: Path) -> None:
    def part(text: str, **changes: object) -> dict[str, object]:
        plain = {"conversation": "abc", "position": 12, "role": "user", "tool": None, "path": None}
        place = {"start": 0, "end": len(text), "when": "2026-11-23T11:00:00+00:00", "text": text}
        return {**plain, **place, **changes}

    other = part("a\x1b[2Jb\x07", conversation="parent", role="tool", tool="read\x1b", path="/src/a.py")
    async with opening(tmp_path) as desk:
        desk.know(make_row("abc"))
        desk.toy.answer(
            "GET", "/conversations/abc/search", {"id": "abc", "found": [part("Fix.\nNow."), other]}
        )
        shown = (await desk.run("conversations", "search", "abc", "retry", "of")).out
    assert "message 12: user; characters 0 to 9; taken out " in shown
    assert "Fix.\nNow.\n\nmessage 12 of parent: tool, read\ufffd, /src/a.py; " in shown
    assert "a\ufffd[2Jb\ufffd" in shown and "\x1b" not in shown and "\x07" not in shown
    assert [path for _, path, _ in desk.toy.asked if "search" in path] == [
        "/api/v1/conversations/abc/search?q=retry+of&limit=5"
    ]


async def test_top_leaves_out_money_that_is_not_known(tmp_path: Path) -> None:
    known = make_economics(
        prompt_tokens=900, cached_tokens=450, compared_requests=5, with_usd=1, without_usd=2
    )
    async with opening(tmp_path) as desk:
        desk.know(
            make_row("a", economics=known, cache_breaks=2), make_row("b", saved_usd=None, spent_usd=None)
        )
        totals = json.loads((await desk.run("top", "--json")).out)["totals"]
        shown = (await desk.run("top", "--once")).out
    assert (totals["requests"], totals["saved_usd"], totals["summary_usd"]) == (6, 0.25, None)
    assert shown.startswith("+$1.00 saved: $2.00 without the gateway, $1.00 with it, for 5 requests")
    assert "cached 50% of 900 prompt tokens; 3 breaks" in shown and "spent $1.50" in shown


def watch(config: str, end: bytes, shows: bytes) -> int:
    """The exit status of `refold top` in a terminal in which somebody presses a key once it shows this."""
    person, terminal = pty.openpty()
    words = [sys.executable, "-m", "gateway", "top", "--config", config]
    program = subprocess.Popen(
        words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, preexec_fn=_control
    )
    os.close(terminal)
    try:
        read_until(person, shows)
        os.write(person, end)
        # The other screen is left, and the cursor shown again.
        shown = read_until(person, b"\x1b[?1049l")
        shown += read_until(person, b"\x1b[?25h") if b"\x1b[?25h" not in shown else b""
        return program.wait(60)
    finally:
        program.kill()
        program.wait()
        os.close(person)


def _control() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_until(descriptor: int, end: bytes) -> bytes:
    data = b""
    while end not in data:
        ready, _, _ = select.select([descriptor], [], [], 60)
        assert ready, data[-2_000:]
        data += os.read(descriptor, 1 << 16)
    return data


async def test_top_follows_a_gateway_and_leaves_the_terminal_as_it_was(house: House, tmp_path: Path) -> None:
    """A row that is new comes by an event."""
    config = tmp_path / "gateway.yaml"
    await asyncio.to_thread(
        config.write_text, f"admin: {{port: {house.product.admin_port}, token: {ADMIN_TOKEN}}}\n"
    )
    watching = asyncio.create_task(asyncio.to_thread(watch, str(config), b"q", b"later-model"))
    while not watching.done():
        body = {"model": "later-model", "messages": [{"role": "user", "content": "Hello"}]}
        assert (await house.post("/chat/completions", body)).status == 200
        await asyncio.wait({watching}, timeout=0.1)
    assert await watching == 0
