"""Mistakes of everyday: each has a message that names the fix, at the start where it can be known."""

import json
import re
from pathlib import Path

import aiohttp
import pytest

from tests.hostile.process import run_command, serving
from tests.toy.delivery import RawAnswer
from tests.toy.reply import Reply
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream

_BODY = {"model": "toy-model", "messages": [{"role": "user", "content": "hunter2"}]}


def fail(*arguments: str, cwd: Path) -> str:
    """What a command says that must not succeed."""
    done = run_command(*arguments, cwd=cwd)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr
    return done.stderr


async def post(port: int, path: str) -> tuple[int, dict[str, str]]:
    # The URL is taken as it is: slashes are not joined.
    async with (
        aiohttp.ClientSession() as client,
        client.post(
            f"http://127.0.0.1:{port}{path}", json=_BODY, headers={"Authorization": "Bearer k"}
        ) as got,
    ):
        await got.read()
        return got.status, {name.lower(): value for name, value in got.headers.items()}


async def test_the_start_says_where_clients_operators_and_state_are(tmp_path: Path) -> None:
    async with (
        ToyUpstream() as toy,
        serving("--upstream", toy.base_url, "--admin-port", "0", folder=tmp_path) as gateway,
    ):
        log = gateway.log
        assert re.search(r"admin +http://127\.0\.0\.1:\d+/ in a browser, /api/v1 and /metrics", log)
        assert re.search(r"models +2,\d\d\d windows are known", log)
        assert f"state     {tmp_path / '.gateway'}, kept for 7 days" in log


async def test_an_upstream_url_without_v1_is_named_with_the_right_one(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        toy.raw_answers = {
            ("GET", "/models"): RawAnswer(status=404),
            ("GET", "/v1/models"): RawAnswer(pieces=(b'{"data": []}',)),
        }
        async with serving("--upstream", toy.root_url, "--admin-port", "0", folder=tmp_path) as gateway:
            await wait_until(lambda: "WARNING gateway.start" in gateway.log, 20)
            assert f"write base_url: {toy.base_url}\n" in gateway.log


@pytest.mark.parametrize("ending", ["chat/completions", "responses", "messages"])
def test_an_upstream_url_of_one_endpoint_is_refused(tmp_path: Path, ending: str) -> None:
    said = fail("serve", "--upstream", f"http://127.0.0.1:9/v1/{ending}", cwd=tmp_path)
    assert "write http://127.0.0.1:9/v1\n" in said and said.count("\n") == 1


def test_an_upstream_url_without_its_scheme_is_refused(tmp_path: Path) -> None:
    assert "must be http://HOST" in fail("serve", "--upstream", "localhost:8000/v1", cwd=tmp_path)


async def test_a_port_that_is_taken_names_the_option(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        said = fail("serve", "--port", str(toy.port), cwd=tmp_path)
        assert f"port {toy.port} on 127.0.0.1 is in use" in said and "--port N" in said
        more = ("--upstream", toy.base_url, "--admin-port", str(toy.port))
        async with serving(*more, folder=tmp_path) as gateway:
            assert "admin     not open, see the log" in gateway.log and "--admin-port N" in gateway.log
            async with (
                aiohttp.ClientSession() as client,
                client.get(f"http://127.0.0.1:{gateway.port}/healthz") as health,
            ):
                assert health.status == 200
    assert "65535" in fail("serve", "--port", "70000", cwd=tmp_path)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("match: 'qwen[', context: 8000", "without its ']'"),
        ("match: '^gpt', context: 8000", "regular expression"),
        ("match: 'gpt*', context: 100", "128K is written 128000"),
        ("match: 'gpt*', context: 8000, output: 9000", "is larger than context"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(tmp_path: Path, rule: str, expected: str) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(f"models:\n  - {{{rule}}}\n")
    for command in (("check", str(config)), ("serve", "--config", str(config))):
        said = fail(*command, cwd=tmp_path)
        assert f"{config}:2: models[0]" in said and expected in said


async def test_careless_paths_are_served_and_wrong_ones_have_a_line(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = lambda _: Reply(text="Hello.")
        config.write_text(
            f'store: "memory:"\nadmin: {{port: 0}}\nupstreams: {{default: {{base_url: "{toy.base_url}"}}}}\n'
            "models: [{match: 'TOY-*', context: 16000}]\n"
        )
        async with serving("--config", str(config), "--log-level", "debug", folder=tmp_path) as gateway:
            for path in (
                "//chat/completions",
                "/v1//chat/completions/",
                "/v1/v1/chat/completions?x=hunter2",
            ):
                status, headers = await post(gateway.port, path)
                assert (status, headers.get("x-gateway-plan")) == (200, "passthrough"), path
            assert {seen.path.partition("?")[0] for seen in toy.requests if seen.method == "POST"} == {
                "/v1/chat/completions"
            }
            await post(gateway.port, "/openai/v1/chat/completions")
            await wait_until(lambda: gateway.log.count("DEBUG gateway.requests POST ") == 4, 20)
            log = gateway.log
    assert re.search(
        r"INFO gateway\.requests conversation [0-9a-f]+ tenant key:[0-9a-f]+ model 'toy-model' ", log
    )
    assert log.count("INFO gateway.requests conversation ") == 1
    assert "'/openai/v1/chat/completions' are relayed as they come" in log
    assert "the rule with match 'TOY-*' does not apply to model 'toy-model'" in log
    assert "hunter2" not in log and json.dumps(_BODY) not in log
