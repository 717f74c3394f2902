import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.model_map import choose_summary_model
from gateway.core.policy import Summary

_MAP = Summary(model_map=(("*-haiku", None), ("claude-*", "claude-haiku"), ("c*", "other")))


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
    assert choose_summary_model(_MAP, model) == chosen


@given(st.text())
def test_a_model_that_the_policy_names_is_never_mapped(model: str) -> None:
    assert choose_summary_model(Summary(model="own", model_map=(("*", "mapped"),)), model) == "own"


@given(st.text())
def test_without_a_map_the_conversations_model_summarises(model: str) -> None:
    assert choose_summary_model(Summary(), model) == model
