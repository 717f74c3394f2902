"""Settings that are allowed and hardly meant."""

from pathlib import Path

import pytest

from gateway.settings import load_settings
from tests.builders.settings import PLAIN, load_text


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
