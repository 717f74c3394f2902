"""How each client is pointed at the gateway, and what its own settings say of the address before."""

import json
from pathlib import Path

import pytest

from gateway.command_line.clients import CLIENTS, find_client

_OLD = "http://old.example/v1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project is a folder of it."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("program", "name"),
    [("claude", "claude"), ("/opt/bin/codex.js", "codex"), ("opencode.exe", "opencode"), ("aider", "aider")],
)
def test_a_client_is_known_by_the_name_of_its_file(program: str, name: str) -> None:
    assert name in find_client(program).names
    assert find_client("python") is CLIENTS[-1]


def test_settings_of_claude_that_go_before_the_environment_are_overruled(home: Path) -> None:
    client, env = find_client("claude"), {"HOME": str(home)}
    assert client.read_own(env, []).arguments == ()
    write(home / ".claude/settings.json", json.dumps({"env": {"ANTHROPIC_BASE_URL": "http://one.example"}}))
    write(
        home / "project/.claude/settings.json",
        json.dumps({"env": {"ANTHROPIC_BASE_URL": "http://two.example"}}),
    )
    own = client.read_own(env, [])
    assert own.values["ANTHROPIC_BASE_URL"] == "http://two.example"
    assert own.arguments == ("--settings", '{"env": {"ANTHROPIC_BASE_URL": "{root}"}}')


@pytest.mark.parametrize(
    ("settings", "old", "key"),
    [
        ("", None, "openai_base_url"),
        (f'openai_base_url = "{_OLD}"', _OLD, "openai_base_url"),
        (
            f'model_provider = "x"\n[model_providers.x]\nbase_url = "{_OLD}"',
            _OLD,
            "model_providers.x.base_url",
        ),
        (
            f'profile = "p"\n[profiles.p]\nmodel_provider = "x"\n[model_providers.x]\nbase_url = "{_OLD}"',
            _OLD,
            "model_providers.x.base_url",
        ),
        ("no = toml = at all", None, "openai_base_url"),
    ],
)
def test_codex_gets_the_address_for_the_provider_in_use(
    settings: str, old: str | None, key: str, home: Path
) -> None:
    write(home / ".codex/config.toml", settings)
    own = find_client("codex").read_own({"HOME": str(home)}, [])
    assert own.values.get("base_url") == old
    assert own.arguments == ("-c", f'{key}="{{root}}/v1"')
    write(home / "elsewhere/config.toml", settings)
    assert find_client("codex").read_own({"CODEX_HOME": str(home / "elsewhere")}, []) == own


def test_opencode_gets_the_address_for_the_provider_of_its_model(home: Path) -> None:
    client, env = find_client("opencode"), {"HOME": str(home), "OLD": _OLD}
    known = json.loads(client.read_own(env, []).sets["OPENCODE_CONFIG_CONTENT"])["provider"]
    assert known == {name: {"options": {"baseURL": "{root}/v1"}} for name in ("openai", "anthropic")}
    write(
        home / ".config/opencode/opencode.jsonc",
        """{
          // of mine: "x": {"options": {}}
          "model": "other/m",
          "provider": {"mine": {"options": {"baseURL": "{env:OLD}", "apiKey": "//"}}, /* two */
                       "openai": {"options": {"baseURL": "http://api.example/v1"}},},
        }""",
    )
    assert client.read_own(env, []).values == {"mine": _OLD, "openai": "http://api.example/v1"}
    write(home / "project/opencode.json", '{"model": "mine/m"}')
    own = client.read_own(env | {"OPENCODE_CONFIG_CONTENT": '{"share": "disabled"}'}, ["run", "hello"])
    assert own.values == {"all": _OLD}
    assert json.loads(own.sets["OPENCODE_CONFIG_CONTENT"]) == {
        "share": "disabled",
        "provider": {"mine": {"options": {"baseURL": "{root}/v1"}}},
    }
    assert "all" not in client.read_own(env, ["run", "--model", "openai/gpt-5", "hello"]).values


def test_files_that_aider_reads_go_before_the_environment(home: Path) -> None:
    env = {"HOME": str(home), "OPENAI_API_BASE": "http://env.example/v1"}
    client = find_client("aider")
    assert client.read_own(env, []).values == {}
    write(home / "project/.env", "export OPENAI_API_BASE='http://dotenv.example/v1'\n")
    assert client.read_own(env, []).values["OPENAI_API_BASE"] == "http://dotenv.example/v1"
    write(home / ".aider.conf.yml", f"openai-api-base: {_OLD}\n")
    assert client.read_own(env, []).values["OPENAI_API_BASE"] == _OLD
    assert client.arguments == ("--openai-api-base", "{root}/v1")


def test_the_environment_goes_before_the_files_of_qwen(home: Path) -> None:
    env = {"HOME": str(home)}
    client = find_client("qwen")
    write(home / ".qwen/.env", f'OPENAI_BASE_URL="{_OLD}"\n')
    assert client.read_own(env, []).values["OPENAI_BASE_URL"] == _OLD
    values = client.read_own(env | {"OPENAI_BASE_URL": "http://env.example/v1"}, []).values
    assert values["OPENAI_BASE_URL"] == "http://env.example/v1"
