"""Which model a policy's summaries are asked from, and whether they ride."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.summary_model import choose_summary_model, wants_riding
from gateway.core.policy import Prompts, Summary
from tests.builders.riding import RIDING

_FAMILIES = Summary(model_map=(("*-haiku", None), ("claude-*", "claude-haiku"), ("c*", "other")))


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
def test_without_a_map_the_conversations_model_summarizes(model: str) -> None:
    assert choose_summary_model(Summary(), model) == model


@pytest.mark.parametrize(
    "summary",
    [
        Summary(ride="never"),
        Summary(model="small"),
        Summary(model_map=(("toy", "small"),)),
        Summary(upstream="other"),
        Summary(method="digest"),
    ],
)
def test_a_policy_may_want_no_ride_or_another_model(summary: Summary) -> None:
    assert wants_riding(RIDING, "toy", "toy")
    assert not wants_riding(replace(RIDING, summary=summary), "toy", "toy")


@pytest.mark.parametrize(
    "prompts", [replace(RIDING.prompts, instruction="Sum up."), replace(RIDING.prompts, ride=" ")]
)
def test_without_headings_or_a_text_for_it_nothing_rides(prompts: Prompts) -> None:
    assert not wants_riding(replace(RIDING, prompts=prompts), "toy", "toy")
