"""The program as one process: how it starts, drains and ends, and its settings file while it runs."""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.system.processes import HI, STREAM, linux_only, post, wait_until_said
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.house import make_settings
from tests.toy.product import Process, run_command, serve, serve_process
from tests.toy.reply import Reply
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.timeout(400)

_REPOSITORY = Path(__file__).resolve().parents[2]
_ADMIN = "admin: {port: 0}\n"


async def read_status(url: str) -> int:
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        await response.read()
        return response.status


async def wait_until_draining(served: Process) -> None:
    async with asyncio.timeout(30):
        while await read_status(f"http://127.0.0.1:{served.port}/readyz") != 503:
            await asyncio.sleep(0.01)


async def test_without_a_file_it_serves_with_the_embedded_store_and_says_where_everything_is(
    tmp_path: Path,
) -> None:
    async with (
        ToyUpstream() as toy,
        serve_process(None, tmp_path, "--upstream", toy.base_url, "--admin-port", "0") as served,
    ):
        toy.reply = lambda _: Reply(text="Hello.")
        for path in ("healthz", "readyz"):
            assert await read_status(f"http://127.0.0.1:{served.port}/{path}") == 200
        answer = await post(served.base_url)
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == "Hello."
        assert answer.header("x-gateway-plan") == "passthrough"
        log = served.log
        assert await served.stop() == 0
    assert re.search(r"admin +http://127\.0\.0\.1:\d+/ in a browser, /api/v1 and /metrics", log)
    assert re.search(r"models +\d,\d\d\d windows are known", log)
    assert f"state     {tmp_path / '.gateway'}, kept for 7 days" in log
    assert (tmp_path / ".gateway").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_sigterm_drains_open_streams_and_readyz_reports_it(workers: str, tmp_path: Path) -> None:
    async with (
        ToyUpstream() as toy,
        serve_process(None, tmp_path, "--upstream", toy.base_url, "--workers", workers) as served,
    ):
        toy.reply = lambda _: Reply(text="word " * 60, delta_chars=10)
        toy.delivery = Delivery(between_writes_seconds=0.03)
        url = f"{served.base_url}/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(url, json=STREAM) as answer:
            first = await answer.content.readany()
            served.send(signal.SIGTERM)
            await wait_until_draining(served)
            whole = first + await answer.content.read()
        assert whole.endswith(b"data: [DONE]\n\n")
        assert await served.wait() == 0


@pytest.mark.parametrize(
    ("second", "workers"), [(signal.SIGTERM, "1"), (signal.SIGINT, "1"), (signal.SIGTERM, "2")]
)
async def test_a_second_signal_ends_the_program_whatever_is_being_drained(
    second: signal.Signals, workers: str, tmp_path: Path
) -> None:
    async with ToyUpstream() as toy:
        toy.delivery = Delivery(before_headers_seconds=3600.0)
        settings = make_settings(toy, more="drain_seconds: 3600\n")
        async with serve_process(settings, tmp_path, "--workers", workers) as served:
            asking = asyncio.create_task(post(served.base_url))
            await wait_until(lambda: len(toy.requests) == 1)
            served.send(signal.SIGTERM)
            await wait_until_draining(served)
            assert served.is_running
            served.send(second)
            # Without the second signal it would wait for an hour.
            await served.wait()
            with pytest.raises(aiohttp.ClientError):
                await asking


async def test_a_drain_is_over_when_its_time_is(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.delivery = Delivery(before_headers_seconds=3600.0)
        async with serve_process(make_settings(toy, more="drain_seconds: 0.1\n"), tmp_path) as served:
            asking = asyncio.create_task(post(served.base_url))
            await wait_until(lambda: len(toy.requests) == 1)
            assert await served.stop() == 0
            with pytest.raises(aiohttp.ClientError):
                await asking


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_port_in_use_is_said_first_and_alone(workers: str, tmp_path: Path) -> None:
    """The store is used by the other gateway, too, and the settings have a warning of their own."""
    async with ToyUpstream() as toy:
        settings = make_settings(toy, store="disk:.gateway", more="policies: {unused: {}}\n")
        async with serve_process(settings, tmp_path) as served:
            words = ("--config", "gateway.yaml", "--port", str(served.port), "--workers", workers)
            refused = await asyncio.to_thread(run_command, "serve", *words, cwd=tmp_path)
    assert refused.status == 1
    assert refused.err.splitlines() == [
        f"gateway: port {served.port} on 127.0.0.1 is in use, perhaps by another gateway: "
        "choose another one with --port N"
    ]


async def test_an_admin_port_in_use_keeps_no_client_waiting(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        more = ("--upstream", toy.base_url, "--admin-port", str(toy.port))
        async with serve_process(None, tmp_path, *more) as served:
            assert "admin     not open, see the log" in served.log and "--admin-port N" in served.log
            assert (await post(served.base_url)).status == 200


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_settings_that_are_wrong_are_said_once(workers: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="upstreamz") as failed:
        async with serve_process("upstreamz: {}\n", tmp_path, "--workers", workers):
            pass
    assert str(failed.value).count("unknown key 'upstreamz'") == 1


async def test_a_gateway_in_front_of_itself_is_refused() -> None:
    async with (
        ToyUpstream() as toy,
        serve(None, upstream=toy.base_url, env={}) as inner,
        serve(None, upstream=inner.base_url, env={}) as outer,
    ):
        answer = await post(outer.base_url)
    assert answer.status == 508
    assert "gateway itself" in json.loads(answer.body)["error"]["message"]


async def test_an_upstream_url_without_v1_is_named_with_the_right_one(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers = {
            ("GET", "/models"): RawAnswer(status=404),
            ("GET", "/v1/models"): RawAnswer(pieces=(b'{"data": []}',)),
        }
        async with serve_process(None, tmp_path, "--upstream", toy.root_url, "--admin-port", "0") as served:
            await wait_until_said(served, "WARNING gateway.start")
            await wait_until_said(served, f"write base_url: {toy.base_url}\n")


async def test_careless_paths_are_served_and_wrong_ones_have_a_line_without_a_word_of_the_body(
    tmp_path: Path,
) -> None:
    async with ToyUpstream(window=16_000) as toy:
        # The rule is written with other letters than the model's name.
        settings = make_settings(toy).replace("toy-*", "TOY-*")
        async with serve_process(settings, tmp_path, "--log-level", "debug") as served:
            root = f"http://127.0.0.1:{served.port}"
            body = HI.replace(b"Hi.", b"hunter2")
            for path in ("/", "/v1/", "/v1/v1"):
                answer = await post(f"{root}{path}", body)
                assert (answer.status, answer.header("x-gateway-plan")) == (200, "passthrough"), path
            assert {seen.path for seen in toy.chats} == {"/v1/chat/completions"}
            await post(f"{root}/openai/v1", body)
            await wait_until(lambda: served.log.count("DEBUG gateway.requests POST ") == 4)
            log = served.log
    assert log.count("INFO gateway.requests conversation ") == 1
    assert "'/openai/v1/chat/completions' are relayed as they come" in log
    assert "the rule with match 'TOY-*' does not apply to model 'toy-model'" in log
    assert "hunter2" not in log


def run_python(program: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("words", ["--help", "--version", "serve --help", "run --help", "health --help"])
def test_help_comes_without_what_a_command_needs(words: str, tmp_path: Path) -> None:
    """Their imports take ten times as long as Python itself."""
    program = (
        "import runpy, sys\ntry:\n    runpy.run_module('gateway', run_name='__main__', alter_sys=True)\n"
        "finally:\n    heavy = {'asyncio', 'pydantic', 'aiohttp', 'rich'}\n"
        "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    shown = run_python(program, *words.split(), cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "[]\n") and shown.stdout


@pytest.mark.parametrize(
    ("words", "output", "status"),
    [
        ("models", "| true", 0),
        ("models gpt-4o", ">&-", 0),
        (f"check {os.devnull} --model gpt-4o", ">&-", 0),
    ],
)
def test_output_that_nobody_reads_is_no_error_to_report(
    words: str, output: str, status: int, tmp_path: Path
) -> None:
    """A reader that has ended, or no output at all."""
    shown = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.quote(sys.executable)} -m gateway {words} {output}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        stderr=subprocess.PIPE,
        timeout=50,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (status, b"")


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[ToyUpstream, Process]]:
    async with ToyUpstream() as toy, serve_process(make_settings(toy), folder) as served:
        yield toy, served


async def shows_headers(served: Process) -> bool:
    answer = await post(served.base_url)
    assert answer.status == 200
    return answer.header("x-gateway-plan") is not None


async def test_sighup_loads_the_file_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (toy, served):
        assert await shows_headers(served)
        path = tmp_path / "gateway.yaml"
        more = f"{_ADMIN}response_headers: false\nlisten: {{max_body_bytes: 5000}}\n"
        path.write_text(make_settings(toy, more=more))
        served.send(signal.SIGHUP)
        await wait_until_said(served, "settings reloaded: response_headers")
        assert "hold from the next start on: listen.max_body_bytes" in served.log
        assert not await shows_headers(served)

        path.write_text(make_settings(toy, more=_ADMIN).replace("upstreams:", "upstreamz:"))
        served.send(signal.SIGHUP)
        await wait_until_said(served, "not reloaded")
        (line,) = (line for line in served.log.splitlines() if "not reloaded" in line)
        assert "ERROR gateway.reload" in line
        assert f"{path}:2: unknown key 'upstreamz'; the nearest valid key is 'upstreams'" in line
        assert not await shows_headers(served)

        path.write_text(make_settings(toy, more=f"{_ADMIN}response_headers: false\n"))
        served.send(signal.SIGHUP)
        await wait_until_said(served, "nothing has changed")
        assert await served.stop() == 0
        assert "Traceback" not in served.log


async def test_a_watched_file_is_loaded_when_another_one_is_moved_over_it(tmp_path: Path) -> None:
    async with (
        ToyUpstream() as toy,
        serve_process(make_settings(toy, more=_ADMIN), tmp_path, "--watch") as served,
    ):
        assert await shows_headers(served)
        (tmp_path / "new").write_text(make_settings(toy, more=f"{_ADMIN}response_headers: false\n"))
        (tmp_path / "new").rename(tmp_path / "gateway.yaml")
        await wait_until_said(served, "settings reloaded: response_headers")
        assert not await shows_headers(served)


@linux_only
async def test_a_signal_during_the_start_reloads_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, served):
        await served.stop()
        starting = asyncio.create_task(served.start())
        # From here on the signal is blocked until there is a handler for it.
        await wait_until(lambda: served.is_running and _blocks_hangup(served.pid))
        served.send(signal.SIGHUP)
        await starting
        await wait_until_said(served, "settings reloaded: nothing has changed")
        assert await shows_headers(served)


def _blocks_hangup(process_id: int) -> bool:
    """See proc(5): a mask of signals, the first of which is SIGHUP."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    mask = next((line.split()[1] for line in lines if line.startswith("SigBlk")), "0")
    return bool(int(mask, 16) & 1)


async def test_signals_during_a_drain_and_in_quick_succession_do_no_harm(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, served):
        for _ in range(20):
            served.send(signal.SIGHUP)
        assert await shows_headers(served)
        served.send(signal.SIGTERM)
        for _ in range(20):
            if served.is_running:
                served.send(signal.SIGHUP)
                await asyncio.sleep(0)
        assert await served.wait() == 0
        assert "Traceback" not in served.log


async def test_the_port_is_free_again_at_the_end_and_a_client_that_stays_connected_delays_nothing(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (_, served), aiohttp.ClientSession() as client:
        async with client.get(f"http://127.0.0.1:{served.port}/healthz") as kept:
            await kept.read()
        assert await served.stop() == 0
        with socket.create_server(("127.0.0.1", served.port)):
            pass
