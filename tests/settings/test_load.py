"""Settings from file, environment and command line."""

from pathlib import Path

import pytest

from gateway.core.policy import Policy, Pruning
from gateway.settings import SettingsError, fingerprint, load_settings
from tests.builders.settings import KEYED, PLAIN, load_text, without_prompts

_CONTRACT = """\
listen: {host: 127.0.0.1, port: 8080, max_body_bytes: 67108864}
admin:  {host: 127.0.0.1, port: 8081, token: "${GATEWAY_ADMIN_TOKEN:-}"}
store: "disk:.gateway"                       # disk:PATH | redis://HOST:PORT/DB | memory:
upstreams:
  default: {base_url: "https://api.openai.com/v1", api_key: null, formats: [chat, responses, messages]}
models:                                      # first match wins; merged over the bundled table
  - {match: "gpt-4o*", context: 128000, output: 16384}
policies:
  default:
    preset: adaptive
    compaction: {auto: true, prune: true}
    trigger:  {output_cap: 32000}            # plus the preset's own ratios and reserves
    keep:     {tail_tokens: 20000, tail_messages: 0, opening: true}
    pruning:  {protect_tokens: 40000, minimum_tokens: 20000, protected_tools: [skill], keep_turns: 2, \
placeholder: "[Old tool result content cleared]"}
    summary:  {model: null, upstream: null, max_tokens: 4096, instructions: "", timeout_seconds: 120}
tenants:
  - {name: team-a, keys: ["${TEAM_A_KEY}"], upstream: default, policy: default}
"""


def test_without_a_file_everything_has_a_default() -> None:
    settings = load_settings(None, {"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1"})
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 8080)
    assert {name: (each.base_url, set(each.formats)) for name, each in settings.upstreams.items()} == {
        "default": ("https://api.openai.com/v1", {"chat", "responses"}),
        "anthropic": ("https://api.anthropic.com/v1", {"messages"}),
    }
    assert settings.store == "disk:.gateway"
    assert {name: without_prompts(policy) for name, policy in settings.policies.items()} == {
        "default": Policy()
    }
    assert (settings.tenants, settings.models) == ((), ())
    assert settings.retention.seconds == 7 * 86_400
    assert settings.response_headers


def test_an_empty_file_is_like_no_file(tmp_path: Path) -> None:
    assert load_text(tmp_path, "upstreams:\ntenants:\nlisten:\npolicies:\n") == load_settings(None, {})


def test_a_complete_file_loads(tmp_path: Path) -> None:
    settings = load_text(tmp_path, _CONTRACT, {"TEAM_A_KEY": "key-a"})
    assert settings.admin.token is None
    assert without_prompts(settings.policies["default"]) == Policy(pruning=Pruning(keep_turns=2))
    assert settings.tenants[0].fingerprints == (fingerprint("key-a"),)
    assert settings.models[0].limits.context == 128_000
    assert settings.models[0].applies_to("gpt-4o-mini", "default")
    assert not settings.models[0].applies_to("gpt-4", "default")


@pytest.mark.system(9)
@pytest.mark.parametrize(
    ("value", "is_disabled"), [("1", True), ("yes", True), ("", False), ("0", False), ("Off", False)]
)
def test_the_environment_can_disable_compaction_for_all_policies(value: str, is_disabled: bool) -> None:
    settings = load_settings(None, {"GATEWAY_DISABLE_AUTOCOMPACT": value, "GATEWAY_DISABLE_PRUNE": value})
    policy = settings.policies["default"]
    assert (policy.auto, policy.prune) == (not is_disabled, not is_disabled)


def test_an_upstream_as_a_url_supports_everything_and_the_command_line_wins(tmp_path: Path) -> None:
    env = {"GATEWAY_UPSTREAM": "http://env.example/v1/"}
    from_env = load_settings(None, env).upstreams
    assert {name: each.base_url for name, each in from_env.items()} == {"default": "http://env.example/v1"}
    assert from_env["default"].formats == {"chat", "responses", "messages"}
    assert load_text(tmp_path, "store: 'memory:'\n", env).upstreams == from_env
    assert load_text(tmp_path, PLAIN, env).upstreams["default"].base_url == "https://x.example/v1"
    over = load_text(tmp_path, KEYED, env, upstream="http://cli.example").upstreams
    assert {name: (each.base_url, each.api_key) for name, each in over.items()} == {
        "default": ("http://cli.example", None)
    }


def test_the_command_line_takes_precedence_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("listen: {host: 10.0.0.1, port: 1, max_body_bytes: 9}\n")
    listen = load_settings(path, {}, host="127.0.0.2", port=0).listen
    assert (listen.host, listen.port, listen.max_body_bytes) == ("127.0.0.2", 0, 9)


def test_the_admin_port_is_chosen_by_option_and_environment(tmp_path: Path) -> None:
    env = {"GATEWAY_ADMIN_HOST": "0.0.0.0", "GATEWAY_ADMIN_TOKEN": "from-env"}
    admin = load_settings(None, env, admin_port=9).admin
    assert (admin.host, admin.port) == ("0.0.0.0", 9)
    assert admin.token is not None and admin.token.get_secret_value() == "from-env"
    configured = load_text(tmp_path, "admin: {host: 127.0.0.9, token: of-file}\n", env).admin
    assert configured.host == "127.0.0.9"
    assert configured.token is not None and configured.token.get_secret_value() == "of-file"
    with pytest.raises(SettingsError, match=r"admin\.token: is required"):
        load_settings(None, {"GATEWAY_ADMIN_HOST": "0.0.0.0"})


def test_a_problem_of_the_command_line_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--port: .*65535"):
        load_settings(None, {}, port=70_000)
    with pytest.raises(SettingsError, match=r"^--admin-port: .*0"):
        load_settings(None, {}, admin_port=-1)
    with pytest.raises(SettingsError, match=r"^--upstream: .*http://"):
        load_settings(None, {}, upstream="x")
    with pytest.raises(SettingsError, match=r"^\$GATEWAY_UPSTREAM: .*points at the gateway itself"):
        load_settings(None, {"GATEWAY_UPSTREAM": "http://localhost:9"}, port=9)
    with pytest.raises(SettingsError, match="an open relay"):
        load_text(tmp_path, KEYED, host="0.0.0.0")
