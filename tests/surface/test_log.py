"""The log of a gateway: what its lines hold in text and in JSON, and what no line, metric or error holds."""

import asyncio
import contextlib
import io
import json
import logging
import re
from functools import partial
from itertools import product as product_of
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.surface.written import write
from tests.toy.agent import Shape, make_session
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.house import ADMIN, House, make_settings
from tests.toy.product import run_command, serve, serve_process
from tests.toy.reply import Reply
from tests.toy.running import run_session, wait_until
from tests.toy.upstream import Seen, ToyUpstream

_CANARY = "Canary7f3a"
_KEY = "sk-canary"
# Where a client may put text.
_BODIES = (
    '{"model": "toy-1", "messages": [{"role": "user", "content": "%s"}]}',
    '{"model": "toy-1", "messages": [{"role": "system", "content": "%s"}, {"role": "user", "content": "x"}]}',
    '{"model": "toy-1", "stream": true, "messages": [{"role": "user", "content": [{"type": "%s"}]}]}',
    '{"model": "toy-1", "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "%s"}]}',
    '{"model": "toy-1", "messages": [{"role": "%s", "content": "x"}]}',
    '{"model": "toy-1", "messages": "%s"}',
    '{"model": "toy-1", "%s": [',
    "%s",
    '{"model": "toy-1", "input": "%s", "previous_response_id": "r1"}',
    '{"model": "toy-1", "max_tokens": 9, "messages": [{"role": "user", "content": "/compact %s"}]}',
)
_PATHS = (
    *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/files"),
    *("/x/chat/completions", "/../y"),
)
_LONG = json.dumps(
    {
        "model": "toy-1",
        "messages": [
            {"role": role, "content": text}
            for at in range(12)
            for role, text in (("user", f"{at} {_CANARY} " * 2_000), ("assistant", "ok"))
        ]
        + [{"role": "user", "content": "go on"}],
    }
)
# What the upstream answers, besides what the toy itself does.
_ANSWERS = (
    None,
    RawAnswer(status=500, pieces=(_CANARY.encode(),)),
    RawAnswer(status=400, pieces=(b'{"error": {"message": "%b is too long"}}' % _CANARY.encode(),)),
    RawAnswer(pieces=(b"x" * 50,), delivery=Delivery(stop_after_bytes=9, ending="abort")),
    RawAnswer(status=302, headers=(("Location", f"http://{_CANARY}/"),)),
    RawAnswer(pieces=(_CANARY.encode(),)),
    RawAnswer(
        status=400,
        pieces=(
            b'{"error": {"code": "context_length_exceeded", "message": "maximum context length is 8000 '
            b'tokens. %b"}}' % _CANARY.encode(),
        ),
    ),
)


def _choose(answer: RawAnswer | None, _: Seen) -> RawAnswer | None:
    return answer


async def ask(url: str, body: str) -> list[str]:
    """What the gateway answered, if the toy did not: it names its server, and the gateway names none."""
    headers = {"Authorization": f"Bearer {_KEY}", "X-Note": _CANARY}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(url, data=io.BytesIO(body.encode()), allow_redirects=False) as response,
    ):
        with contextlib.suppress(aiohttp.ClientError):
            text = await response.text()
            return [] if "Server" in response.headers else [text]
    return []


async def test_no_line_metric_or_error_of_ours_holds_content_or_a_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever a client sends and an upstream answers, at the level debug."""
    caplog.set_level(logging.DEBUG, "gateway")
    ours: list[str] = []
    more = f"{ADMIN}policies: {{default: {{commands: true}}}}\n"
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy, more=more)) as product:
        house = House(toy, product, _KEY)
        for answer in _ANSWERS:
            toy.intercept = partial(_choose, answer)
            for body, path in (*product_of(_BODIES, _PATHS), (_LONG, _PATHS[0])):
                url = f"{product.root_url}{path}?key={_KEY}"
                ours += await ask(url, body.replace("%s", _CANARY))
        await product.at_rest()
        status, metrics = await house.admin("/metrics")
    lines = [f"{record.getMessage()} {record.exc_text} {vars(record)}" for record in caplog.records]
    assert len([line for line in lines if "gateway.requests" in line]) > 400
    assert [line for line in lines if _CANARY in line or _KEY in line] == []
    assert status == 200 and _CANARY not in metrics and _KEY not in metrics
    assert ours and not any(_CANARY in text or _KEY in text for text in ours)


async def test_a_compaction_is_one_line_with_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway")
    async with ToyUpstream(window=16_000) as toy, serve(make_settings(toy)) as product:
        house = House(toy, product, "sk-a")
        run = await house.play(make_session(30, 3), Shape(max_tokens=1_000))
        await house.at_rest()
    done = [each.getMessage() for each in caplog.records if each.name == "gateway.compactor"]
    assert len(done) == len(run.summaries)
    assert all(re.match(r"compacted covers=\d+ of=\d+ ", line) for line in done)
    assert all(f"conversation={run.conversation}" in line for line in done)
    # At info, requests have no lines of their own.
    assert [each for each in caplog.records if each.levelno < logging.INFO] == []


def render_settings(toy: ToyUpstream, *, level: str = "debug", form: str = "json") -> str:
    log = f"log: {{format: {form}, level: {level}}}\n"
    return make_settings(toy, more=f"admin: {{port: 0}}\n{log}")


async def post(base_url: str) -> None:
    body = {"model": "toy-model", "messages": [{"role": "user", "content": _CANARY}]}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {_KEY}"}) as client,
        client.post(f"{base_url}/chat/completions?x={_CANARY}", json=body) as response,
    ):
        await response.read()


async def read_metrics(admin_url: str) -> list[str]:
    async with aiohttp.ClientSession() as client, client.get(f"{admin_url}/metrics") as response:
        return (await response.text()).splitlines()


async def test_a_log_is_text_until_a_reload_makes_it_json(tmp_path: Path) -> None:
    """A reload that fails changes nothing, and is counted."""
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = lambda _: Reply(text="Hello.")
        text = render_settings(toy, level="info", form="text")
        async with serve_process(text, tmp_path, "--watch") as process:
            write_again = (tmp_path / "gateway.yaml").write_text
            await post(process.base_url)
            await asyncio.to_thread(write_again, "no: such key\n")
            await wait_until(lambda: "settings not reloaded" in process.log)
            metrics = await read_metrics(process.admin_url)
            await asyncio.to_thread(write_again, render_settings(toy))
            await wait_until(lambda: "settings reloaded: log" in process.log)
            await post(process.base_url)
            await process.stop()
            log = process.log
    assert _CANARY not in log and _KEY not in log
    assert 'gateway_settings_reloads_total{result="failed"} 1.0' in metrics
    before, _, after = log.partition("settings reloaded: log")
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO gateway\S* ", before, re.MULTILINE)
    assert " DEBUG " not in before
    lines: list[dict[str, Any]] = [json.loads(line) for line in after.splitlines()[1:]]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines)
    (request,) = [line for line in lines if line.get("method") == "POST"]
    found = (request["level"], request["logger"], request["plan"])
    assert found == ("debug", "gateway.requests", "passthrough")
    assert {"conversation", "received", "sent", "prompt_tokens", "seconds", "own_seconds"} <= request.keys()
    # One process has no name.
    assert not any("process" in line for line in lines)


def test_a_failure_at_the_start_is_a_line_of_json_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = f"store: 'disk:{tmp_path}/file'\nadmin: {{port: 0}}\nlisten: {{port: 0}}\nlog: {{format: json}}\n"
    ended = run_command("serve", "--config", write(tmp_path, text), cwd=tmp_path)
    (line,) = [json.loads(line) for line in ended.err.splitlines()]
    assert (ended.status, line["level"]) == (1, "error")
    assert line["message"].startswith("cannot serve: ") and f"{tmp_path}/file" in line["message"]


# What the lists of upstreams say at the start.

_LIST = RawAnswer(pieces=(b'{"data": [{"id": "m", "max_model_len": 8192}, {"id": "n"}]}',))
_ABSENT = RawAnswer(status=404, pieces=(b"{}",))
_PAGE = RawAnswer(headers=(("Content-Type", "text/html"),), pieces=(b"<html>",))
_REDIRECT = RawAnswer(status=308, headers=(("Location", "https://elsewhere.example/v1/models"),))


@pytest.mark.parametrize(
    ("path", "answers", "api_key", "level", "said"),
    [
        ("", {"/models": _ABSENT, "/v1/models": _LIST}, "", "WARNING", "write base_url: URL/v1"),
        ("/v1", {"/v1/models": _PAGE, "/models": _LIST}, "", "WARNING", "write base_url: URL"),
        ("/v1", {"/v1/models": _ABSENT, "/models": _ABSENT}, "", "INFO", "has no list of models at URL/v1"),
        ("", {"/models": RawAnswer(status=401), "/v1/models": _LIST}, "", "INFO", "answers at URL"),
        ("/v1", {"/v1/models": _LIST}, "", "INFO", "answers at URL/v1 and names the windows of 1 models"),
        ("/v1", {"/v1/models": RawAnswer(status=403)}, _KEY, "WARNING", "refuses its api_key (status 403)"),
        ("/v1", {"/v1/models": _REDIRECT}, "", "WARNING", "'https://elsewhere.example/v1/models', which is"),
    ],
)
async def test_at_the_start_it_is_said_whether_an_upstream_is_where_the_settings_say(
    path: str,
    answers: dict[str, RawAnswer],
    api_key: str,
    level: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway.start")
    async with ToyUpstream() as toy:
        toy.raw_answers = {("GET", each): answer for each, answer in answers.items()}
        key = f", api_key: {api_key}" if api_key else ""
        text = f'store: "memory:"\nupstreams: {{up: {{base_url: "{toy.root_url}{path}"{key}}}}}\n'
        async with serve(text):
            (line,) = await _wait_for_lines(caplog, "upstream 'up' ")
    assert line.levelname == level and said.replace("URL", toy.root_url) in line.getMessage()
    assert _KEY not in line.getMessage()
    # It never goes where a redirect leads, and needs no client's key.
    assert {seen.path for seen in toy.requests} <= answers.keys()
    sent = [dict(seen.headers).get("Authorization") for seen in toy.requests]
    assert set(sent) == {f"Bearer {api_key}" if api_key else None}


async def test_an_upstream_that_cannot_be_reached_is_named_and_the_others_are_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway.start")
    async with ToyUpstream() as toy, ToyUpstream() as gone:
        toy.raw_answers = {("GET", "/v1/models"): _LIST}
        await gone.__aexit__(None, None, None)
        text = f'store: "memory:"\nupstreams: {{gone: {{base_url: "{gone.base_url}"}}, '
        text += f'here: {{base_url: "{toy.base_url}"}}}}\n'
        async with serve(text):
            (refused,) = await _wait_for_lines(caplog, "upstream 'gone'")
            (found,) = await _wait_for_lines(caplog, "upstream 'here'")
    assert "connection refused" in refused.getMessage() and "is it running" in refused.getMessage()
    assert (refused.levelname, found.levelname) == ("WARNING", "INFO")


async def _wait_for_lines(caplog: pytest.LogCaptureFixture, words: str) -> list[logging.LogRecord]:
    def find() -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.getMessage().startswith(words)]

    await wait_until(lambda: bool(find()))
    return find()


_PLUGIN = """
import threading
def fail():
    raise ValueError("nobody has caught this")
class hook:
    def pre_compact(before):
        threading.Thread(target=fail).start()
"""


async def test_an_error_that_nobody_catches_is_a_line_of_json_too(tmp_path: Path) -> None:
    """Here in a thread of a plugin that stands beside the process."""
    (tmp_path / "toy_thread.py").write_text(_PLUGIN, "utf-8")
    info = tmp_path / "toy_thread-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-thread\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text("[gateway.hooks]\nhook = toy_thread:hook\n", "utf-8")
    async with (
        ToyUpstream(window=16_000) as toy,
        serve_process(render_settings(toy, level="info"), tmp_path) as process,
    ):
        session = make_session(20, 3)
        assert (await run_session(session, process.base_url, toy, Shape(max_tokens=1_000))).failed == []
        await wait_until(lambda: "nobody has caught this" in process.log)
        await process.stop()
        lines = [json.loads(line) for line in process.log.splitlines()]
    failed = [line for line in lines if line["level"] == "critical"]
    assert failed and all(line["message"] == "uncaught error" for line in failed)
