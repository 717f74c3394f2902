"""Which policy holds for which tenant and model."""

from pathlib import Path

import pytest

from gateway.policies import Policies
from gateway.settings import Settings, SettingsError, load_settings
from gateway.tenancy import Tenant

_TEXT = """\
upstreams: {default: {base_url: "https://a.example"}, local: {base_url: "https://b.example"}}
policies: {default: , careful: {preset: recent}, small: {preset: rolling}}
models:
  - {match: "gpt-4o*", context: 1000}
  - {match: "qwen*", upstream: local, policy: small}
  - {match: "qwen*", context: 2000, policy: careful}
  - {match: "qwen-max", policy: small}
"""


def load(folder: Path, text: str = _TEXT) -> Settings:
    path = folder / "f.yaml"
    path.write_text(text, "utf-8")
    return load_settings(path, {})


def choose(settings: Settings, model: str, upstream: str = "default", policy: str = "default") -> str:
    return Policies(settings).choose(Tenant("t", None, policy), upstream, model).name


def test_the_first_rule_that_fits_and_names_a_policy_decides(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert choose(settings, "gpt-4o") == "adaptive"
    assert choose(settings, "qwen-max") == "recent"
    assert choose(settings, "qwen-max", upstream="local") == "rolling"


def test_otherwise_it_is_the_tenants(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert choose(settings, "gpt-4o", policy="careful") == "recent"
    assert choose(settings, "qwen", policy="careful", upstream="local") == "rolling"


def test_the_same_question_gets_the_same_object_however_many_models_are_named(tmp_path: Path) -> None:
    policies = Policies(load(tmp_path))
    tenant = Tenant("t", None, "default")
    first = policies.choose(tenant, "default", "qwen")
    for at in range(10_000):
        policies.choose(tenant, "default", f"m{at}")
    assert policies.choose(tenant, "default", "qwen") is first


def test_a_rule_that_only_names_a_policy_hides_no_limits(tmp_path: Path) -> None:
    rules = [rule for rule in load(tmp_path).models if rule.is_about_limits]
    assert [rule.limits.context for rule in rules] == [1_000, 2_000]


def test_a_rule_cannot_name_a_policy_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"f\.yaml:5: models\[1\]\.policy: there is no such policy"):
        load(tmp_path, _TEXT.replace("local, policy: small", "local, policy: smal"))
