from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.compaction.summary_client import SummaryModel, SummaryModels, choose_summary_model
from gateway.conversations.turn import Turn
from gateway.core.policy import Policy, Summary
from gateway.tenants import Tenant
from tests.builders.chat import make_turn, read, render

_MAPPED = replace(Policy(), summary=Summary(model_map=(("toy", "small"),)))

SMALL = SummaryModel("t", "a", "small")

_FAMILIES = Summary(model_map=(("*-haiku", None), ("claude-*", "claude-haiku"), ("c*", "other")))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def turn(policy: Policy = _MAPPED, tenant: str = "t") -> Turn:
    received = read(render([{"role": "user", "content": "Hi."}]))
    return make_turn(received, policy=policy, tenant=Tenant(tenant, None, "default"))


def test_an_unknown_model_is_remembered_for_the_tenant_and_the_upstream() -> None:
    models = SummaryModels(Clock())
    assert models.choose(turn(), "a") == SMALL
    assert models.note_unknown(turn(), SMALL)
    assert models.choose(turn(), "a") == SMALL._replace(model="toy")
    assert models.choose(turn(), "b") == SMALL._replace(upstream="b")
    assert models.choose(turn(tenant="other"), "a") == SMALL._replace(owner="other")


def test_an_unknown_model_is_asked_again_after_an_hour() -> None:
    clock = Clock()
    models = SummaryModels(clock)
    models.note_unknown(turn(), SMALL)
    clock.now = 3_599.0
    assert models.choose(turn(), "a").model == "toy"
    clock.now = 3_600.0
    assert models.choose(turn(), "a").model == "small"


def test_the_policys_own_model_and_the_conversations_model_are_never_replaced() -> None:
    models = SummaryModels(Clock())
    named = replace(Policy(), summary=Summary(model="mine"))
    assert not models.note_unknown(turn(named), SMALL._replace(model="mine"))
    assert models.choose(turn(named), "a").model == "mine"
    assert not models.note_unknown(turn(), SMALL._replace(model="toy"))


def test_only_the_newest_unknown_models_are_remembered() -> None:
    models = SummaryModels(Clock())
    models.note_unknown(turn(), SMALL)
    for at in range(10_000):
        models.note_unknown(turn(), SMALL._replace(model=f"m{at}"))
    assert models.choose(turn(), "a").model == "small"


@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        ("claude-opus", "claude-haiku"),
        ("claude-haiku", "claude-haiku"),
        ("claude-3-haiku", "claude-3-haiku"),
        ("codex", "other"),
        ("gpt-5", "gpt-5"),
        ("CLAUDE-opus", "CLAUDE-opus"),
    ],
)
def test_the_first_pattern_that_fits_names_the_model(model: str, chosen: str) -> None:
    assert choose_summary_model(_FAMILIES, model) == chosen


@given(st.text())
def test_a_model_that_the_policy_names_is_never_mapped(model: str) -> None:
    assert choose_summary_model(Summary(model="own", model_map=(("*", "mapped"),)), model) == "own"


@given(st.text())
def test_without_a_map_the_conversations_model_summarises(model: str) -> None:
    assert choose_summary_model(Summary(), model) == model
