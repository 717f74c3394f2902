"""The command line in real processes with real signals."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.hostile.process import ProcessGateway, run_command, serving
from tests.toy.agent import Session, Shape, make_session
from tests.toy.gateway import make_settings
from tests.toy.reply import Reply
from tests.toy.running import Pace, run_session, wait_until
from tests.toy.upstream import ToyUpstream

SHAPE = Shape(max_tokens=1_000)


async def wait_until_draining(client: aiohttp.ClientSession, port: int) -> None:
    status = 200
    async with asyncio.timeout(30):
        while status != 503:
            async with client.get(f"http://127.0.0.1:{port}/readyz") as ready:
                status = ready.status


async def test_without_a_file_it_serves_with_the_embedded_store(tmp_path: Path) -> None:
    async with (
        ToyUpstream(window=128_000) as toy,
        serving("--upstream", toy.base_url, folder=tmp_path) as served,
    ):
        toy.reply = lambda _: Reply(text="Hello.")
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{served.port}/healthz") as health:
                assert (health.status, (await health.json())["status"]) == (200, "ok")
            async with client.get(f"http://127.0.0.1:{served.port}/readyz") as ready:
                assert ready.status == 200
            body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi."}]}
            async with client.post(f"{served.base_url}/chat/completions", json=body) as answer:
                assert (await answer.json())["choices"][0]["message"]["content"] == "Hello."
                assert answer.headers["x-gateway-plan"] == "passthrough"
    assert (tmp_path / ".gateway").is_dir()
    assert (tmp_path / ".gateway").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_sigterm_drains_open_streams_and_readyz_reports_it(workers: str, tmp_path: Path) -> None:
    async with (
        ToyUpstream(window=128_000) as toy,
        serving("--upstream", toy.base_url, "--workers", workers, folder=tmp_path) as served,
    ):
        toy.reply = lambda _: Reply(text="word " * 60, delta_chars=10)
        toy.delivery = toy.delivery.__class__(between_writes_seconds=0.03)
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi."}]}
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{served.base_url}/chat/completions", json=body) as answer,
        ):
            first = await answer.content.readany()
            served.send(signal.SIGTERM)
            await wait_until_draining(client, served.port)
            rest = await answer.content.read()
        assert (first + rest).endswith(b"data: [DONE]\n\n")
        assert await served.wait() == 0


@pytest.mark.parametrize(
    ("second", "workers"), [(signal.SIGTERM, "1"), (signal.SIGINT, "1"), (signal.SIGTERM, "2")]
)
async def test_a_second_signal_ends_the_program_whatever_is_being_drained(
    second: signal.Signals, workers: str, tmp_path: Path
) -> None:
    async with ToyUpstream(window=128_000) as toy:
        config = tmp_path / "gateway.yaml"
        config.write_text(make_settings(toy, more="drain_seconds: 3600\n"))
        toy.delivery = toy.delivery.__class__(before_headers_seconds=3600.0)
        async with (
            serving("--config", str(config), "--workers", workers, folder=tmp_path) as served,
            aiohttp.ClientSession() as client,
        ):
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
            asking = asyncio.create_task(client.post(f"{served.base_url}/chat/completions", json=body))
            await wait_until(lambda: len(toy.requests) == 1, 30)
            served.send(signal.SIGTERM)
            await wait_until_draining(client, served.port)
            assert served.is_running
            served.send(second)
            # Without the second signal it would wait for an hour.
            await served.wait()
            with pytest.raises(aiohttp.ClientError):
                await asking


async def test_a_killed_gateway_continues_with_its_stored_pivot(tmp_path: Path, store_url: str) -> None:
    session = make_session(40, 11, "one_user", 700)
    async with ToyUpstream(window=16_000, bias=1.1) as toy:
        config = tmp_path / "gateway.yaml"
        config.write_text(make_settings(toy, store=store_url))
        async with serving("--config", str(config), folder=tmp_path) as served:
            # No summary is due at this turn, nor after it.
            first = await run_session(session, served.base_url, toy, SHAPE, Pace(last=28))
            # Heads are written with a delay of two seconds; the pivot was durable before its first use.
            await asyncio.sleep(3)
            await served.kill()
        assert first.failed == [] and toy.summaries
        made = len(toy.summaries)
        async with serving("--config", str(config), folder=tmp_path) as served:
            again = await run_session(session, served.base_url, toy, SHAPE, Pace(first=28, last=29))
    before, after = first.outgoing[-1].request["messages"], again.outgoing[0].request["messages"]
    assert isinstance(before, list) and isinstance(after, list)
    assert after[: len(before)] == before
    assert len(toy.summaries) == made


async def test_a_killed_gateway_resumes_a_due_summary_at_the_next_request(
    tmp_path: Path, store_url: str
) -> None:
    session = make_session(40, 11, "one_user", 700)
    async with ToyUpstream(window=16_000, bias=1.1) as toy:
        config = tmp_path / "gateway.yaml"
        config.write_text(make_settings(toy, store=store_url))
        toy.summary_delivery = toy.summary_delivery.__class__(before_headers_seconds=30.0)
        async with serving("--config", str(config), folder=tmp_path) as served:
            # A summary is due after the last of them.
            await run_session(session, served.base_url, toy, SHAPE, Pace(last=13))
            await wait_until(lambda: len(toy.summaries) == 1)
            # The client goes on while it is made. The turn after this one would wait for it.
            await run_session(session, served.base_url, toy, SHAPE, Pace(first=13, last=14))
            # Heads are written with a delay of two seconds.
            await asyncio.sleep(3)
            await served.kill()
        assert [seen.finished for seen in toy.summaries] == [False]
        toy.summary_delivery = toy.summary_delivery.__class__()
        async with serving("--config", str(config), folder=tmp_path) as served:
            await ask_again(served, toy, session)
            # On a busy machine Redis may be late; then the summary is due until a request finds it.
            if len(toy.summaries) == 1 and store_url.startswith("redis"):
                await ask_again(served, toy, session)
        assert len(toy.summaries) > 1, served.log


async def ask_again(served: ProcessGateway, toy: ToyUpstream, session: Session) -> None:
    """Returns once another summary is asked for, or after half a minute."""
    again = await run_session(session, served.base_url, toy, SHAPE, Pace(first=13, last=14))
    assert again.failed == []
    with suppress(TimeoutError):
        await wait_until(lambda: len(toy.summaries) > 1)


def test_check_prints_a_summary_or_the_problems_of_a_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("listen: {port: 9000}\n")
    bad.write_text("listen: {prot: 9000}\n")
    assert run_command("check", str(good), cwd=tmp_path).returncode == 0
    refused = run_command("check", str(bad), cwd=tmp_path)
    assert refused.returncode == 2
    assert "bad.yaml:1" in refused.stderr and "port" in refused.stderr


def test_wrong_usage_is_reported_in_one_line(tmp_path: Path) -> None:
    workers = run_command("serve", "--workers", "0", cwd=tmp_path)
    assert workers.returncode == 2 and "from 1 to" in workers.stderr
    itself = run_command("serve", "--port", "18999", "--upstream", "http://127.0.0.1:18999/v1", cwd=tmp_path)
    assert itself.returncode != 0 and "itself" in itself.stderr
    assert "Traceback" not in workers.stderr + itself.stderr


@pytest.mark.parametrize("option", ["--config", "--upstream"])
@pytest.mark.parametrize("command", ["serve", "models", "doctor", "health"])
def test_an_empty_value_does_not_mean_the_built_in_settings(
    command: str, option: str, tmp_path: Path
) -> None:
    """As `--config "$UNSET"` leaves it."""
    refused = run_command(command, option, "", cwd=tmp_path)
    assert refused.returncode == 2
    assert f"argument {option}: must not be empty" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    ["replay x --config", "export ab --config", "top --config", "tenants list --config", "check"],
)
def test_an_empty_name_of_a_file_is_refused(command: str, tmp_path: Path) -> None:
    refused = run_command(*command.split(), "", cwd=tmp_path)
    assert refused.returncode == 2 and "must not be empty" in refused.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_port_in_use_is_said_first_and_alone(workers: str, tmp_path: Path) -> None:
    """The store is used by the other gateway, too, and the settings have a warning of their own."""
    async with ToyUpstream(window=128_000) as toy:
        config = tmp_path / "gateway.yaml"
        config.write_text(make_settings(toy, store="disk:.gateway", more="policies: {unused: {}}\n"))
        async with serving("--config", str(config), folder=tmp_path) as served:
            words = ("--config", str(config), "--port", str(served.port), "--workers", workers)
            refused = await asyncio.to_thread(run_command, "serve", *words, cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        f"gateway: port {served.port} on 127.0.0.1 is in use, perhaps by another gateway: "
        "choose another one with --port N"
    ]


async def test_a_gateway_in_front_of_itself_is_refused(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    async with (
        ToyUpstream(window=128_000) as toy,
        serving("--upstream", toy.base_url, folder=first) as inner,
        serving("--upstream", inner.base_url, folder=second) as outer,
        aiohttp.ClientSession() as client,
        client.post(f"{outer.base_url}/chat/completions", json=body) as answer,
    ):
        assert answer.status == 508
        assert "gateway itself" in json.loads(await answer.read())["error"]["message"]


async def test_a_port_that_others_can_reach_is_announced_loudly(tmp_path: Path) -> None:
    shown = run_command("check", os.devnull, cwd=tmp_path)
    assert "open to everybody" not in shown.stderr
    config = tmp_path / "gateway.yaml"
    config.write_text("listen: {host: 0.0.0.0}\n")
    shown = run_command("check", str(config), cwd=tmp_path)
    assert "open to everybody who can reach it" in shown.stderr
    tenants = "tenants: [{name: a, keys: [sk-a], upstream: default}]\n"
    config.write_text(f"listen: {{host: 0.0.0.0}}\n{tenants}")
    assert "open to everybody" not in run_command("check", str(config), cwd=tmp_path).stderr


def test_the_key_of_a_tenant_that_leaves_is_announced_and_does_not_leave_to_two(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("tenants:\n  - {name: a, keys: [sk-a], upstream: default}\n")
    shown = run_command("check", str(config), cwd=tmp_path)
    assert shown.returncode == 0
    assert "keys of these tenants are sent to api.openai.com:443 as the credential: a." in shown.stderr
    config.write_text("tenants:\n  - {name: a, keys: [sk-a]}\n")
    for words in (("check", str(config)), ("serve", "--config", str(config), "--port", "0")):
        refused = run_command(*words, cwd=tmp_path)
        assert refused.returncode == 2 and "Traceback" not in refused.stderr
        assert "gateway.yaml:2: tenants[0].keys: would be sent" in refused.stderr
        assert "api.anthropic.com:443 and to api.openai.com:443" in refused.stderr


def test_help_names_both_commands(tmp_path: Path) -> None:
    shown = run_command("--help", cwd=tmp_path)
    assert shown.returncode == 0 and "serve" in shown.stdout and "check" in shown.stdout


@pytest.mark.parametrize(
    "words",
    ["--help", "--version", "serve --help", "run --help", "conversations show --help", "health --help"],
)
def test_help_comes_without_what_a_command_needs(words: str, tmp_path: Path) -> None:
    """Their imports take ten times as long as Python itself."""
    program = (
        "import sys\nfrom gateway.__main__ import main\ntry:\n    main(sys.argv[1:])\nfinally:\n"
        "    heavy = {'gateway.settings', 'gateway.store', 'asyncio', 'pydantic', 'aiohttp', 'rich'}\n"
        "    print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, *words.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, "[]\n") and shown.stdout


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_openai_base_url_is_ignored(name: str, tmp_path: Path) -> None:
    shown = run_command("check", os.devnull, cwd=tmp_path, **{name: "http://127.0.0.1:1/v1"})
    assert "127.0.0.1:1/" not in shown.stdout + shown.stderr


def test_models_and_check_say_with_their_status_whether_a_window_is_known(tmp_path: Path) -> None:
    known = run_command("models", "gpt-4o", cwd=tmp_path)
    assert (known.returncode, known.stderr) == (0, "") and "128,000" in known.stdout
    unknown = run_command("models", "no-such-model", cwd=tmp_path)
    assert (unknown.returncode, unknown.stderr) == (1, "") and "unknown" in unknown.stdout
    assert run_command("models", cwd=tmp_path).returncode == 0
    both = run_command("models", "gpt-4o", "no-such-model", cwd=tmp_path)
    assert (both.returncode, both.stderr) == (1, "")
    assert both.stdout == f"{known.stdout}\n{unknown.stdout}"
    checked = run_command("check", os.devnull, "--model", "gpt-4o", cwd=tmp_path)
    assert checked.returncode == 0 and "128,000" in checked.stdout
    assert run_command("check", os.devnull, "--model", "no-such-model", cwd=tmp_path).returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_the_demo_ends_well_whatever_the_environment_says(tmp_path: Path) -> None:
    shown = run_command(
        "demo", cwd=tmp_path, GATEWAY_DISABLE_AUTOCOMPACT="1", GATEWAY_UPSTREAM="http://x.test"
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "INFO gateway.compactor compacted covers=" in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_upstream_that_gets_what_it_does_not_know_is_announced(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("upstreams: {default: {base_url: 'https://api.openai.com/v1'}}\n")
    shown = run_command("check", str(config), cwd=tmp_path)
    assert shown.returncode == 0 and "formats: [chat, responses]" in shown.stderr


def test_output_that_nobody_reads_is_no_error_to_report(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        shown = subprocess.run(
            [sys.executable, "-m", "gateway", "models"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "",
                "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            },
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=50,
            check=False,
        )
    finally:
        os.close(writing)
    assert (shown.returncode != 0, shown.stderr) == (True, b"")


@pytest.mark.parametrize("command", ["models", f"check {os.devnull} --model gpt-4o"])
def test_without_an_output_the_status_still_tells(command: str, tmp_path: Path) -> None:
    shown = subprocess.run(
        ["/bin/sh", "-c", f"exec {shlex.quote(sys.executable)} -m gateway {command} >&-"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        stderr=subprocess.PIPE,
        timeout=50,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, b"")


def test_reports_are_one_json_value_for_programs(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("models: [{match: mine, context: 9000}]\n")
    ran = run_command("models", "mine", "--json", "--config", str(config), cwd=tmp_path)
    report = json.loads(ran.stdout)
    assert ran.returncode == 0 and report["is_known"] and report["upstreams"][0]["context"] == 9000
    ran = run_command("models", "mine", "gpt-4o", "--json", "--config", str(config), cwd=tmp_path)
    assert [model["model"] for model in json.loads(ran.stdout)["models"]] == ["mine", "gpt-4o"]
    ran = run_command("models", "unheard-of", "--json", cwd=tmp_path)
    assert ran.returncode == 1 and not json.loads(ran.stdout)["is_known"]
    ran = run_command("models", "--json", cwd=tmp_path)
    assert json.loads(ran.stdout)["table"] > 1000
    ran = run_command("check", str(config), "--json", "--model", "mine", cwd=tmp_path)
    assert ran.returncode == 0 and json.loads(ran.stdout)["model"]["is_known"]
    ran = run_command("tenants", "list", "--json", cwd=tmp_path)
    assert json.loads(ran.stdout) == {"tenants": []}
