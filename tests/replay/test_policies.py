"""The settings that a replay runs with."""

from pathlib import Path

import pytest

from gateway.replay.errors import ReplayError
from gateway.replay.policies import AS_CONFIGURED, choose_settings
from tests.replay.samples import load

_SETTINGS = """
store: "disk:somewhere"
upstreams: {default: {base_url: "http://127.0.0.1:1/v1", api_key: sk-secret}}
traces: {endpoint: "http://127.0.0.1:4318"}
hooks: {pre_compact: [{url: "http://127.0.0.1:1/hook"}]}
models: [{match: "big", context: 900000, policy: late}, {match: "other", policy: late}]
policies: {late: {trigger: {hard_ratio: 0.9}}, early: {trigger: {hard_ratio: 0.3}}}
tenants: [{name: a, keys: [sk-caller], policy: early, summary_budget: {calls_per_hour: 1}}]
"""


def test_nothing_of_a_replay_reaches_outside(tmp_path: Path) -> None:
    settings = choose_settings(load(_SETTINGS, tmp_path), [], None)[AS_CONFIGURED]
    assert settings.store == "memory:"
    assert settings.upstreams["default"].api_key is None
    assert not settings.upstreams["default"].discover
    assert (settings.hooks.pre_compact, settings.tenants, settings.traces.endpoint) == ([], (), None)


def test_a_policy_holds_for_every_model_and_limits_stay(tmp_path: Path) -> None:
    choices = choose_settings(load(_SETTINGS, tmp_path), ["early", "late", "rolling"], None)
    assert [*choices] == ["early", "late", "rolling"]
    early = choices["early"]
    assert early.policies["default"].trigger.hard_ratio == 0.3
    assert [(rule.match, rule.context, rule.policy) for rule in early.models] == [("big", 900_000, None)]
    assert choices["rolling"].policies["default"].name == "rolling"


def test_a_policy_leaves_prices_as_they_are(tmp_path: Path) -> None:
    priced = _SETTINGS.replace(
        '{match: "other",', '{match: "priced", price: {input: 2, output: 8}}, {match: "other",'
    )
    rules = choose_settings(load(priced, tmp_path), ["early"], None)["early"].models
    assert [rule.match for rule in rules] == ["big", "priced"]


def test_without_a_policy_the_rules_of_the_settings_hold(tmp_path: Path) -> None:
    settings = choose_settings(load(_SETTINGS, tmp_path), [], 64_000)[AS_CONFIGURED]
    assert [rule.policy for rule in settings.models] == [None, "late", "late"]


def test_a_window_holds_for_every_model(tmp_path: Path) -> None:
    rule = choose_settings(load(_SETTINGS, tmp_path), ["early"], 64_000)["early"].models[0]
    assert rule.applies_to("big", "default")
    assert rule.context == 64_000


def test_an_unknown_policy_is_named_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match=r"no policy 'lat'.*late, early|no policy 'lat'.*early.*adaptive"):
        choose_settings(load(_SETTINGS, tmp_path), ["lat"], None)
