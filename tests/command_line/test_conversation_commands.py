"""`refold conversations` against a running gateway, and against answers that a test makes."""

import asyncio
import json
from functools import partial
from pathlib import Path

import msgspec
import pytest

from gateway.command_line.conversation_commands import run_conversations
from gateway.command_line.options import parse_arguments
from tests.builders.sessions import ask
from tests.builders.shown_rows import make_plain_row
from tests.toy.admin_api import serving_admin_port
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.sessions import SESSION, TASK
from tests.toy.sessions import play as play_files
from tests.toy.upstream import ToyUpstream

# Without a token.
OPEN_ADMIN = "admin: {port: 0}\n"
Output = pytest.CaptureFixture[str]


async def run(*words: str, answer: str = "") -> int:
    options = parse_arguments(["conversations", *words])
    return await asyncio.to_thread(partial(run_conversations, options, {}, lambda _: answer))


async def play(gateway: RunningGateway, toy: ToyUpstream, seed: int) -> str:
    session = make_session(30, seed, "one_user", 700)
    played = await run_session(session, gateway.base_url, toy, Shape(max_tokens=1_000))
    await gateway.settle()
    return played.conversation


async def test_conversations_of_a_running_gateway(capsys: Output) -> None:
    async with (
        ToyUpstream(window=16_000, bias=1.1) as toy,
        running_gateway(make_settings(toy, more=OPEN_ADMIN)) as gateway,
    ):
        first, second = await play(gateway, toy, 1), await play(gateway, toy, 2)
        port = ("--admin-port", str(gateway.admin_port))
        assert await run("list", *port) == 0
        shown = capsys.readouterr().out
        assert first[:8] in shown and second[:8] in shown and "/16k" in shown
        assert max(map(len, shown.splitlines())) <= 80 and "\x1b" not in shown
        assert await run("list", "--json", "--limit", "1", *port) == 0
        assert [row["id"] for row in json.loads(capsys.readouterr().out)["conversations"]] == [second]
        assert await run("list", "--json", "--model", "toy-*", "--search", first, *port) == 0
        assert [row["id"] for row in json.loads(capsys.readouterr().out)["conversations"]] == [first]
        assert await run("list", "--model", "other", *port) == 0
        assert "no conversations" in capsys.readouterr().out
        assert await run("show", first[:10], *port) == 0
        shown = capsys.readouterr().out
        assert "Newest requests: 15 of 30" in shown and "pivot ← compaction" in shown
        assert await run("show", first, "--json", *port) == 0
        value = json.loads(capsys.readouterr().out)
        assert value["conversation"]["id"] == first and len(value["requests"]) == 30
        before = len(toy.summaries)
        assert await run("compact", first, "--instructions", "Keep all names.", *port) == 0
        assert "compaction begins now" in capsys.readouterr().out
        await gateway.settle()
        assert len(toy.summaries) > before and "Keep all names." in toy.summaries[-1].body.decode()
        # On loopback without tenants, texts are shown.
        assert await run("show", first, "--texts", *port) == 0
        shown = capsys.readouterr().out
        assert "summary of " in shown and "its text is not shown" not in shown
        assert await run("delete", first, "--json", "--yes", *port) == 0
        assert json.loads(capsys.readouterr().out)["deleted"]["state"] > 0
        assert await run("show", first, *port) == 1
        assert "no conversation has an id" in capsys.readouterr().err


async def test_whoever_has_the_token_may_read_summaries(tmp_path: Path, capsys: Output) -> None:
    more = "admin: {port: 0, token: a-token-of-operators}\n"
    async with (
        ToyUpstream(window=16_000, bias=1.1) as toy,
        running_gateway(make_settings(toy, more=more)) as gateway,
    ):
        identity = await play(gateway, toy, 1)
        path = tmp_path / "gateway.yaml"
        path.write_text(f"admin: {{port: {gateway.admin_port}, token: a-token-of-operators}}\n")
        assert await run("show", identity, "--json", "--texts", "--config", str(path)) == 0
        with_texts = json.loads(capsys.readouterr().out)["summaries"]
        assert await run("show", identity, "--json", "--config", str(path)) == 0
        without = json.loads(capsys.readouterr().out)["summaries"]
        assert await run("list", "--admin-port", str(gateway.admin_port)) == 1
        assert "GATEWAY_ADMIN_TOKEN" in capsys.readouterr().err
    assert with_texts and all(summary["text"] for summary in with_texts)
    assert [summary["text"] for summary in without] == [None] * len(with_texts)


async def test_a_search_shows_what_is_not_sent_any_more(tmp_path: Path, capsys: Output) -> None:
    token = make_session(30, 1, "one_user", 700).facts[1].token
    more = "admin: {port: 0, token: a-token-of-operators}\n"
    async with (
        ToyUpstream(window=16_000, bias=1.1) as toy,
        running_gateway(make_settings(toy, more=more)) as gateway,
    ):
        identity = await play(gateway, toy, 1)
        path = tmp_path / "gateway.yaml"
        path.write_text(f"admin: {{port: {gateway.admin_port}, token: a-token-of-operators}}\n")
        config = ("--config", str(path))
        assert await run("search", identity[:10], token, *config) == 0
        shown = capsys.readouterr().out
        assert await run("search", identity, token, "--json", "--limit", "1", *config) == 0
        (found,) = json.loads(capsys.readouterr().out)["found"]
        assert await run("search", identity, "zzyzx-nowhere", *config) == 1
        assert "nothing found" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            await run("search", identity, "x", "--limit", "99", *config)
        assert "must be 50 at most" in capsys.readouterr().err
    assert token in shown and "message " in shown
    assert token in found["text"]


async def test_an_id_that_begins_several_is_not_guessed(tmp_path: Path, capsys: Output) -> None:
    rows = [make_plain_row(id="abc1"), make_plain_row(id="abc2"), make_plain_row(id="xabc")]
    async with serving_admin_port() as toy:
        toy.answer("GET", "/conversations", {"conversations": msgspec.to_builtins(rows), "next": None})
        config = ("--config", toy.write_settings(tmp_path))
        assert await run("compact", "abc", *config) == 1
        assert await run("compact", "nothing\x1b", *config) == 1
        toy.answer("POST", "/conversations/abc1/compact", {"id": "abc1", "begins": "now"}, status=202)
        assert await run("compact", "abc1", "--json", *config) == 0
    captured = capsys.readouterr()
    assert "2 conversations have ids that begin with abc: abc1, abc2" in captured.err
    assert "no conversation has an id that begins with nothing�" in captured.err
    assert json.loads(captured.out) == {"id": "abc1", "begins": "now"}


async def test_every_page_is_read_up_to_the_limit(tmp_path: Path, capsys: Output) -> None:
    rows = [make_plain_row(id="a1", model="m"), make_plain_row(id="a2", model="n")]
    async with serving_admin_port() as toy:
        toy.answer("GET", "/conversations", {"conversations": msgspec.to_builtins(rows), "next": "more"})
        config = ("--config", toy.write_settings(tmp_path))
        assert await run("list", "--model", "m*", "--limit", "3", "--tenant", "t", "--json", *config) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)["conversations"]] == ["a1"] * 3
    assert [path for _, path, _ in toy.asked] == [
        "/api/v1/conversations?tenant=t&limit=500",
        *["/api/v1/conversations?tenant=t&limit=500&cursor=more"] * 2,
    ]


async def test_nothing_is_deleted_without_a_yes(tmp_path: Path, capsys: Output) -> None:
    rows = [make_plain_row(id="abc1")]
    async with serving_admin_port() as toy:
        toy.answer("GET", "/conversations", {"conversations": msgspec.to_builtins(rows), "next": None})
        deleted = {"id": "abc1", "deleted": {"state": 3, "originals": 2, "named": 0}}
        toy.answer("DELETE", "/conversations/abc1", deleted)
        config = ("--config", toy.write_settings(tmp_path))
        assert await run("delete", "abc", *config) == 1
        assert [method for method, _, _ in toy.asked] == ["GET"]
        assert await run("delete", "abc", *config, answer="yes") == 0
        assert await run("delete", "abc", "--yes", "--json", *config) == 0
    captured = capsys.readouterr()
    assert "nothing was deleted" in captured.err
    assert "abc1: deleted; records: state: 3, originals: 2, named: 0" in captured.out
    assert [method for method, _, _ in toy.asked].count("DELETE") == 2


async def test_errors_go_to_the_error_output_alone(tmp_path: Path, capsys: Output) -> None:
    async with serving_admin_port() as toy:
        pass
    assert await run("list", "--json", "--config", toy.write_settings(tmp_path)) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "no gateway answers" in captured.err


async def test_what_a_session_worked_on_is_markdown_or_json(capsys: Output) -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        running_gateway(make_settings(toy, more=OPEN_ADMIN)) as gateway,
    ):
        identity = await play_files(gateway, [*SESSION, ask("Now this: \x1b[31m red")])
        port = ("--admin-port", str(gateway.admin_port))
        assert await run("show", identity, "--summary", *port) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"# {TASK}\n") and "- `/a.py`: +3 -2\n" in shown and "\x1b" not in shown
        assert await run("show", identity, "--summary", "--json", *port) == 0
        assert json.loads(capsys.readouterr().out)["files"][0]["path"] == "/a.py"


async def test_what_a_session_worked_on_is_a_text(capsys: Output) -> None:
    more = OPEN_ADMIN + "policies: {default: {show_texts: false}}\n"
    async with ToyUpstream(window=16_000) as toy, running_gateway(make_settings(toy, more=more)) as gateway:
        identity = await play_files(gateway, SESSION)
        assert await run("show", identity, "--summary", "--admin-port", str(gateway.admin_port)) == 1
        output = capsys.readouterr()
        assert TASK not in output.out + output.err and "texts of conversations are not shown" in output.err
