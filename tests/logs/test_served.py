"""The log of a running gateway, as a program reads it."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.hostile.process import run_command, serving
from tests.toy.reply import Reply
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream
from tests.workers.processes import find_admin_port

_SECRET = "hunter2"


def render_settings(toy: ToyUpstream, *, level: str = "debug", form: str = "json") -> str:
    return (
        f'store: "memory:"\nadmin: {{port: 0}}\nupstreams: {{default: {{base_url: "{toy.base_url}"}}}}\n'
        f"models: [{{match: 'toy-*', context: 16000}}]\nlog: {{format: {form}, level: {level}}}\n"
    )


def read_lines(log: str) -> list[dict[str, Any]]:
    """Every line, or the test fails."""
    return [json.loads(line) for line in log.splitlines()]


async def post(port: int) -> None:
    body = {"model": "toy-model", "messages": [{"role": "user", "content": _SECRET}]}
    headers = {"Authorization": f"Bearer {_SECRET}"}
    async with aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{port}/v1/chat/completions?x={_SECRET}"
        async with client.post(url, json=body, headers=headers) as response:
            await response.read()


@pytest.mark.parametrize("workers", [1, 2])
async def test_every_line_is_json_from_the_start_to_the_end(tmp_path: Path, workers: int) -> None:
    config = tmp_path / "gateway.yaml"
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = lambda _: Reply(text="Hello.")
        config.write_text(render_settings(toy))
        words = ("--config", str(config), "--workers", str(workers))
        async with serving(*words, folder=tmp_path) as gateway:
            await post(gateway.port)
            await wait_until(lambda: '"method": "POST"' in gateway.log, 20)
        log = gateway.log
    lines = read_lines(log)
    assert _SECRET not in log
    (request,) = [line for line in lines if line.get("method") == "POST"]
    assert (request["level"], request["logger"], request["plan"]) == (
        "debug",
        "gateway.requests",
        "passthrough",
    )
    assert {"conversation", "received", "sent", "prompt_tokens", "seconds", "own_seconds"} <= request.keys()
    (begun,) = [line for line in lines if line["message"].startswith("conversation ")]
    assert begun["conversation"] == request["conversation"]
    processes = {line.get("process") for line in lines}
    assert processes == ({None} if workers == 1 else {"supervisor", "worker-1", "worker-2"})


async def test_a_reload_changes_the_format_and_the_level(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = lambda _: Reply(text="Hello.")
        config.write_text(render_settings(toy, level="info", form="text"))
        async with serving("--config", str(config), "--watch", folder=tmp_path) as gateway:
            config.write_text(render_settings(toy))
            await wait_until(lambda: "settings reloaded: log" in gateway.log, 30)
            await post(gateway.port)
            await wait_until(lambda: '"method": "POST"' in gateway.log, 30)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_reload_that_failed_is_counted(tmp_path: Path, workers: int) -> None:
    """Here, because it needs the whole program."""
    config = tmp_path / "gateway.yaml"
    async with ToyUpstream(window=16_000) as toy:
        config.write_text(render_settings(toy, level="info", form="text"))
        words = ("--config", str(config), "--watch", "--workers", str(workers))
        async with serving(*words, folder=tmp_path) as gateway:
            url = f"http://127.0.0.1:{find_admin_port(gateway)}/metrics"
            config.write_text("no: such key\n")
            await wait_until(lambda: "settings not reloaded" in gateway.log, 30)
            async with aiohttp.ClientSession() as client, client.get(url) as response:
                lines = (await response.text()).splitlines()
    assert 'gateway_settings_reloads_total{result="failed"} 1.0' in lines
    assert sum(line.startswith("gateway_build_info{") and line.endswith(" 1.0") for line in lines) == 1


def test_a_failure_at_the_start_is_a_line_of_json_too(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    (tmp_path / "file").write_text("")
    config.write_text(
        f"store: 'disk:{tmp_path}/file'\nadmin: {{port: 0}}\nlisten: {{port: 0}}\nlog: {{format: json}}\n"
    )
    ended = run_command("serve", "--config", str(config), cwd=tmp_path)
    (line,) = read_lines(ended.stderr)
    assert (ended.returncode, line["level"]) == (1, "error")
    assert line["message"].startswith("cannot serve: ")
