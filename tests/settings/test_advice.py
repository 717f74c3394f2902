"""Settings that are allowed and hardly meant."""

import re
import textwrap
from pathlib import Path

import pytest

from gateway.settings import load_settings
from tests.builders.settings import KEYED, PLAIN, TENANT, load_text


def warn(folder: Path, rules: str) -> list[str]:
    text = f"{PLAIN}policies: {{p: {{}}}}\nmodels:\n{rules}"
    return [str(problem) for problem in load_text(folder, text).warnings]


@pytest.mark.parametrize(
    "rules",
    [
        "  - {match: '*', context: 8000}\n  - {match: 'qwen*', context: 9000}\n",
        "  - {match: 'qwen*', context: 8000}\n  - {match: 'qwen3*', context: 9000}\n",
        "  - {match: 'q*n?', context: 8000}\n  - {match: 'q*n?', context: 9000}\n",
        "  - {match: 'q*', context: 8000}\n  - {match: 'qwen[23]', upstream: default, context: 9000}\n",
        "  - {match: 'q*', context: 8000, policy: p}\n  - {match: 'qwen', context: 9000, policy: p}\n",
    ],
)
def test_a_rule_behind_one_that_fits_the_same_models_is_named(tmp_path: Path, rules: str) -> None:
    (warning,) = warn(tmp_path, rules)
    assert warning.endswith(
        "f.yaml:6: models[1] is never used: models[0] fits the same models and comes first"
    )


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ("recall: tool, originals: {keep: false}", "recall: tool finds nothing"),
        ("recall: auto, originals: {keep: false}", "recall: auto finds nothing"),
        ("recall: tool", ""),
        ("originals: {keep: false}", ""),
    ],
)
def test_a_recall_without_originals_is_named(tmp_path: Path, policy: str, named: str) -> None:
    text = f"{PLAIN}policies: {{p: {{{policy}}}}}\n"
    warnings = [str(problem) for problem in load_text(tmp_path, text).warnings]
    assert [named in warning and "policies.p" in warning for warning in warnings] == [True] * bool(named)


def test_a_rule_of_a_tenant_that_is_never_used_is_named(tmp_path: Path) -> None:
    rules = "[{match: '*', context: 8000}, {match: 'qwen*', context: 9000}]"
    text = f"{KEYED}models: [{{match: '*', context: 9000}}]\n{TENANT}    models: {rules}\n"
    (warning,) = load_text(tmp_path, text).warnings
    assert str(warning).endswith(
        "f.yaml:9: tenants[0].models[1] is never used: "
        "tenants[0].models[0] fits the same models and comes first"
    )


@pytest.mark.parametrize(
    "rules",
    [
        "  - {match: 'qwen3*', context: 8000}\n  - {match: 'qwen*', context: 9000}\n",
        "  - {match: 'qwen?', context: 8000}\n  - {match: 'qwen*', context: 9000}\n",
        "  - {match: 'qwen[*]', context: 8000}\n  - {match: 'qwen*', context: 9000}\n",
        "  - {match: '*', upstream: default, context: 8000}\n  - {match: 'qwen*', context: 9000}\n",
        "  - {match: '*', policy: p}\n  - {match: 'qwen*', context: 9000}\n",
        "  - {match: '*', context: 8000}\n  - {match: 'qwen*', policy: p}\n",
    ],
)
def test_a_rule_that_may_count_is_not_named(tmp_path: Path, rules: str) -> None:
    assert warn(tmp_path, rules) == []


def test_variables_that_are_not_read_are_named_without_their_values() -> None:
    env = {
        "GATEWAY_UPSTREAMS": "http://secret",
        "GATEWAY_SERVICE_HOST": "10.0.0.1",
        "GATEWAY_PORT": "tcp://x",
    }
    (warning,) = load_settings(None, env).warnings
    assert str(warning).startswith("$GATEWAY_UPSTREAMS: ") and str(warning).endswith("is GATEWAY_UPSTREAM")


def test_a_clients_variable_that_names_another_server_is_named() -> None:
    env = {"OPENAI_BASE_URL": "http://secret:8000/v1"}
    (warning,) = load_settings(None, env).warnings
    assert "--upstream" in str(warning) and "secret" not in str(warning)
    assert load_settings(None, {"OPENAI_BASE_URL": "http://localhost:8080/v1"}).warnings == ()
    assert load_settings(None, env, upstream="http://x.example/v1").warnings == ()


OPENAI = "upstreams:\n  default:\n    base_url: https://api.openai.com/v1\n"
ANTHROPIC = "upstreams:\n  default:\n    base_url: https://api.anthropic.com/v1\n"


@pytest.mark.parametrize(
    ("text", "lost", "formats"),
    [
        (OPENAI, "messages, as Claude Code", "[chat, responses]"),
        (ANTHROPIC, "responses, as Codex", "[chat, messages]"),
        # The first upstream that takes a format gets it.
        (
            OPENAI + "  b: {base_url: 'https://api.anthropic.com/v1', formats: [messages]}\n",
            "messages, as Claude Code",
            "[chat, responses]",
        ),
    ],
)
def test_a_format_that_an_api_does_not_have_is_named(
    tmp_path: Path, text: str, lost: str, formats: str
) -> None:
    (warning,) = map(str, load_text(tmp_path, text).warnings)
    assert "f.yaml:3: upstreams.default: " in warning and lost in warning
    assert f"Write formats: {formats} here" in warning


@pytest.mark.parametrize(
    "text",
    [
        "",
        PLAIN,
        OPENAI + "    formats: [chat, responses]\n",
        OPENAI.replace("api.openai.com", "proxy.example"),
        "upstreams:\n  b: {base_url: 'https://api.anthropic.com/v1', formats: [messages]}\n"
        "  default: {base_url: 'https://api.openai.com/v1'}\n",
    ],
)
def test_formats_that_arrive_where_they_are_known_are_not_named(tmp_path: Path, text: str) -> None:
    assert load_text(tmp_path, text).warnings == ()


def test_what_a_warning_says_to_write_is_valid(tmp_path: Path) -> None:
    for text in (OPENAI, ANTHROPIC):
        (warning,) = map(str, load_text(tmp_path, text).warnings)
        formats = warning.split("Write ")[1].split(" here")[0]
        other = warning.rsplit("for the rest: ", 1)[1]
        assert load_text(tmp_path, f"{text}    {formats}\n  {other}\n").warnings == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (PLAIN + TENANT, "x.example:443 as the credential: a."),
        (PLAIN + TENANT + "    upstream: default\n", "x.example:443 as the credential: a."),
        (
            PLAIN + "".join(["tenants:\n", *(f"  - {{name: t{at}, keys: [k{at}]}}\n" for at in range(5))]),
            "as the credential: t0, t1, t2 and 2 more.",
        ),
    ],
)
def test_an_upstream_that_gets_the_keys_of_tenants_is_named(tmp_path: Path, text: str, named: str) -> None:
    (warning,) = map(str, load_text(tmp_path, text).warnings)
    assert "f.yaml:2: upstreams.default has no `api_key`" in warning and named in warning


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        KEYED + TENANT,
        PLAIN + TENANT + "    upstream: default\n    api_key: own\n",
        # No request of a tenant goes to the second one.
        KEYED + "  other: {base_url: 'https://y.example'}\n" + TENANT,
    ],
)
def test_an_upstream_that_gets_no_key_of_a_tenant_is_not_named(tmp_path: Path, text: str) -> None:
    assert load_text(tmp_path, text).warnings == ()


_VARIABLES = ("TEAM_A_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "REDIS_PASSWORD")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["README.md", "docs/configuration.md"])
def test_settings_that_the_documents_show_are_valid_and_sensible(name: str, tmp_path: Path) -> None:
    shown = re.findall(r"^ *```yaml\n(.*?)^ *```", (ROOT / name).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert shown
    for text in shown:
        settings = load_text(tmp_path, textwrap.dedent(text), dict.fromkeys(_VARIABLES, "k"))
        assert settings.warnings == ()
