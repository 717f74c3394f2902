"""Commands that end: what they say of settings, mistakes and models, and with which status."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.toy.product import command

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the commands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, settings: str) -> str:
    path = folder / "gateway.yaml"
    path.write_text(settings)
    return str(path)


def fail(*arguments: str) -> str:
    """What a command says that must not succeed."""
    done = command(*arguments)
    assert done.status in (1, 2) and "Traceback" not in done.err, done.err
    return done.err


def test_check_ends_well_or_names_file_line_and_key(folder: Path) -> None:
    assert command("check", write(folder, "listen: {port: 9000}\n")).status == 0
    refused = command("check", write(folder, "listen: {prot: 9000}\n"))
    assert refused.status == 2
    assert "gateway.yaml:1" in refused.err and "nearest valid key is 'port'" in refused.err


def test_wrong_usage_is_reported_in_one_line() -> None:
    workers = command("serve", "--workers", "0")
    assert workers.status == 2 and "from 1 to" in workers.err
    itself = command("serve", "--port", "18999", "--upstream", "http://127.0.0.1:18999/v1")
    assert itself.status != 0 and "itself" in itself.err
    assert "65535" in fail("serve", "--port", "70000")


@pytest.mark.parametrize("ending", ["chat/completions", "responses", "messages"])
def test_an_upstream_url_of_one_endpoint_is_refused(ending: str) -> None:
    said = fail("serve", "--upstream", f"http://127.0.0.1:9/v1/{ending}")
    assert "write http://127.0.0.1:9/v1\n" in said and said.count("\n") == 1


def test_an_upstream_url_without_its_scheme_is_refused() -> None:
    assert "must be http://HOST" in fail("serve", "--upstream", "localhost:8000/v1")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("match: 'qwen[', context: 8000", "without its ']'"),
        ("match: '^gpt', context: 8000", "regular expression"),
        ("match: 'gpt*', context: 100", "128K is written 128000"),
        ("match: 'gpt*', context: 8000, output: 9000", "is larger than context"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(folder: Path, rule: str, expected: str) -> None:
    config = write(folder, f"models:\n  - {{{rule}}}\n")
    for words in (("check", config), ("serve", "--config", config)):
        said = fail(*words)
        assert f"{config}:2: models[0]" in said and expected in said


@pytest.mark.parametrize(
    "words",
    [
        *(f"{name} {option}" for name in ("serve", "models", "doctor", "health", "run") for option in
          ("--config", "--upstream")),
        *("replay x --config", "export ab --config", "top --config", "tenants list --config", "check"),
    ],
)  # fmt: skip
def test_an_empty_value_does_not_mean_the_built_in_settings(folder: Path, words: str) -> None:
    """As `--config "$UNSET"` leaves it."""
    more = ("--", "true") if words.startswith("run ") else ()
    refused = command(*words.split(), "", *more)
    assert refused.status == 2 and "must not be empty" in refused.err
    assert list(folder.iterdir()) == []


def test_a_port_that_others_can_reach_is_announced_loudly(folder: Path) -> None:
    assert "open to everybody" not in command("check", os.devnull).err
    shown = command("check", write(folder, "listen: {host: 0.0.0.0}\n"))
    assert "open to everybody who can reach it" in shown.err
    tenants = "tenants: [{name: a, keys: [sk-a], upstream: default}]\n"
    config = write(folder, f"listen: {{host: 0.0.0.0}}\n{tenants}")
    assert "open to everybody" not in command("check", config).err


def test_the_key_of_a_tenant_that_leaves_is_announced_and_does_not_leave_to_two(folder: Path) -> None:
    shown = command("check", write(folder, "tenants:\n  - {name: a, keys: [sk-a], upstream: default}\n"))
    assert shown.status == 0
    assert "keys of these tenants are sent to api.openai.com:443 as the credential: a." in shown.err
    config = write(folder, "tenants:\n  - {name: a, keys: [sk-a]}\n")
    for words in (("check", config), ("serve", "--config", config, "--port", "0")):
        refused = command(*words)
        assert refused.status == 2
        assert "gateway.yaml:2: tenants[0].keys: would be sent" in refused.err
        assert "api.anthropic.com:443 and to api.openai.com:443" in refused.err


def test_an_upstream_that_gets_what_it_does_not_know_is_announced(folder: Path) -> None:
    config = write(folder, "upstreams: {default: {base_url: 'https://api.openai.com/v1'}}\n")
    shown = command("check", config)
    assert shown.status == 0 and "formats: [chat, responses]" in shown.err


def test_help_names_the_commands() -> None:
    shown = command("--help")
    assert shown.status == 0
    for name in ("serve", "check", "run", "models", "doctor", "health", "demo", "export", "tenants"):
        assert re.search(rf"^ +{name}\b", shown.out, re.MULTILINE), name


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_openai_base_url_is_ignored(name: str) -> None:
    shown = command("check", os.devnull, env={name: "http://127.0.0.1:1/v1"})
    assert "127.0.0.1:1/" not in shown.out + shown.err


def test_models_and_check_say_with_their_status_whether_a_window_is_known(folder: Path) -> None:
    known = command("models", "gpt-4o")
    assert (known.status, known.err) == (0, "") and "128,000" in known.out
    unknown = command("models", "no-such-model")
    assert (unknown.status, unknown.err) == (1, "") and "unknown" in unknown.out
    assert command("models").status == 0
    both = command("models", "gpt-4o", "no-such-model")
    assert (both.status, both.err) == (1, "")
    assert both.out == f"{known.out}\n{unknown.out}"
    checked = command("check", os.devnull, "--model", "gpt-4o")
    assert checked.status == 0 and "128,000" in checked.out
    assert command("check", os.devnull, "--model", "no-such-model").status == 1
    assert list(folder.iterdir()) == []


def test_reports_are_one_json_value_for_programs(folder: Path) -> None:
    config = write(folder, "models: [{match: mine, context: 9000}]\n")
    ran = command("models", "mine", "--json", "--config", config)
    report = json.loads(ran.out)
    assert ran.status == 0 and report["is_known"] and report["upstreams"][0]["context"] == 9000
    ran = command("models", "mine", "gpt-4o", "--json", "--config", config)
    assert [model["model"] for model in json.loads(ran.out)["models"]] == ["mine", "gpt-4o"]
    ran = command("models", "unheard-of", "--json")
    assert ran.status == 1 and not json.loads(ran.out)["is_known"]
    assert json.loads(command("models", "--json").out)["table"] > 1000
    ran = command("check", config, "--json", "--model", "mine")
    assert ran.status == 0 and json.loads(ran.out)["model"]["is_known"]
    assert json.loads(command("tenants", "list", "--json").out) == {"tenants": []}


def test_the_demo_ends_well_whatever_the_environment_says(folder: Path) -> None:
    env = {"GATEWAY_DISABLE_AUTOCOMPACT": "1", "GATEWAY_UPSTREAM": "http://x.test"}
    shown = command("demo", env=env)
    assert (shown.status, shown.err) == (0, "")
    assert "INFO gateway.compactor compacted covers=" in shown.out
    assert list(folder.iterdir()) == []
